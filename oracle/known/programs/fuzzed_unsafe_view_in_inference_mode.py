"""`_unsafe_view` of a normal tensor in inference mode is an inference tensor; eager's is none.

Lowering of _unsafe_view: a result, not a view of the argument.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd"), "calls": [{"grad_mode": "inference"}]}
DEVICE = "cpu"


def program(a):
    return torch.ops.aten._unsafe_view(a, [4])


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE),), {}
