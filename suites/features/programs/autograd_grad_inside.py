"""torch.autograd.grad is called inside the program."""

import torch

PROGRAM = {"tags": ("autograd",)}
DEVICE = "cpu"


def program(x):
    x = x.detach().requires_grad_(True)
    energy = (torch.sin(x) * x).sum()
    (force,) = torch.autograd.grad(energy, x)
    return energy.detach(), -force


def inputs(call):
    return (torch.randn(5, device=DEVICE),), {}
