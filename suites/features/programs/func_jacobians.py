"""jacrev and jacfwd of a function that returns a dict."""

import torch
from torch.func import jacfwd, jacrev

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    def function(a):
        return {"sin": a.sin(), "sum": (a**2).sum()}

    return jacrev(function)(x), jacfwd(function)(x), jacrev(torch.exp, chunk_size=2)(x)


def inputs(call):
    return (torch.randn(5, device=DEVICE),), {}
