"""_foreach_copy_ into an argument with a gradient."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a):
    torch._foreach_copy_([a], [a.clone()])
    return a.detach() * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x,), {}
