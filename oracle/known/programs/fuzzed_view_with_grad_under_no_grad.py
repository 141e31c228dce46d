"""A call under no_grad makes a view of an argument under enable_grad: the result is a leaf without a `grad_fn`.

Runtime: views of arguments are regenerated in the grad mode of the call.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a):
    with torch.enable_grad():
        return a.unsqueeze(0)


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
