"""A view of a leaf is made and written under no_grad, and read after a graph break: raises.

Capture: the second graph reads the view's metadata with gradients enabled.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "mutation", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a):
    view = a.view(1, 2)
    view.mul_(2)
    torch._dynamo.graph_break()
    return view * 2


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
