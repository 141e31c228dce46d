"""Results are written through out=, to an input and to a local tensor."""

import torch

PROGRAM = {"tags": ("mutation",)}
DEVICE = "cpu"


def program(x, y, result):
    torch.add(x, y, out=result)
    local = torch.empty_like(x)
    torch.mul(x, y, out=local)
    return local + result


def inputs(call):
    return tuple(torch.randn(2, 3, device=DEVICE) for _ in range(3)), {}
