"""gammaln, erf and xlogy of one column of a wider tensor, stacked."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "vectorization"), "rung": "inductor", "where": "CPU strided vector load"}
DEVICE = "cpu"


def program(table, y, alpha, beta):
    x = table[..., 16]
    positive = torch.nn.functional.softplus(x) + 1e-4
    rates = torch.nn.functional.softplus(y) + 1e-4
    gamma = torch.special.gammaln(positive + alpha.view(1, -1))
    error = torch.special.erf(x * beta.view(1, -1))
    entropy = torch.special.xlogy(positive, rates)
    return torch.stack([gamma, error, entropy], dim=-1)


def inputs(call):
    table = torch.randn(4, 8, 24, device=DEVICE)
    return (table, torch.randn(4, 8, device=DEVICE), torch.rand(8, device=DEVICE), torch.rand(8, device=DEVICE)), {}
