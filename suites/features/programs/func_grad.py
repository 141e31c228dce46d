"""torch.func.grad with an auxiliary output, composed with vmap for per-sample gradients."""

import torch
from torch.func import grad, vmap

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def loss(w, x, y):
    error = torch.tanh(x @ w) - y
    return (error**2).sum(), error


def program(w, x, y):
    gradient, error = grad(loss, has_aux=True)(w, x, y)
    each = vmap(lambda a, b: grad(loss, has_aux=True)(w, a, b)[0])(x, y)
    return gradient, error, each


def inputs(call):
    return (torch.randn(3, device=DEVICE), torch.randn(4, 3, device=DEVICE), torch.randn(4, device=DEVICE)), {}
