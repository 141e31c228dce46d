"""A whole step inside the program: loss, backward, SGD update; three calls go down the loss."""

import torch
from torch import nn

PROGRAM = {"tags": ("autograd", "state", "mutation"), "calls": [{}, {}, {}]}
DEVICE = "cpu"

weight = nn.Parameter(torch.full((3, 1), 0.1, device=DEVICE))
optimizer = torch.optim.SGD([weight], lr=0.1)


def program(x, y):
    optimizer.zero_grad()
    loss = ((x @ weight - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach(), weight.detach().clone()


def inputs(call):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(6, 3, generator=generator).to(DEVICE)
    return (x, x.sum(dim=1, keepdim=True)), {}
