"""A value's detached alias and a view of the value are returned: the view is a leaf, without a `grad_fn`.

Output aliases: both are regenerated from one value, which counts as detached.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "aliasing"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    b = -a
    return b.detach(), b.view(4)


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).requires_grad_(),), {}
