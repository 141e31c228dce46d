"""An in-place add on a[0::2] of a tensor that needs grad reaches the base."""

import torch

PROGRAM = {
    "tags": ("agrees", "aot", "mutation", "aliasing"),
    "rung": "aot_eager",
    "where": "mutation of an input that is a view",
    "calls": [
        {"before": "base = torch.ones(4, device=DEVICE, requires_grad=True).add(0.0); view = base[0::2]"},
        {"before": "view.detach().mul_(3)"},
    ],
}
DEVICE = "cpu"

# Made before the first call: arguments are always leaves, and a leaf that needs grad takes no in-place operation.
base = view = torch.empty(0)


def program(x):
    view.add_(x)
    return view.sum()


def inputs(call):
    return (torch.full((2,), 1.0 + call, device=DEVICE),), {}
