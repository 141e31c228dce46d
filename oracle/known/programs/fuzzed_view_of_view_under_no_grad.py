"""A view of an argument is made under no_grad, and a view of it outside: it has a gradient; eager gives none.

Functionalization: the second view is regenerated from the argument.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "aliasing"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    with torch.no_grad():
        b = a[1:]
    return b.view(-1)


def inputs(call):
    return (torch.ones(3, device=DEVICE).requires_grad_(),), {}
