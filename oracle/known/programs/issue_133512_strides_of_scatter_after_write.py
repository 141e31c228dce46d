"""Select_scatter of a strided argument that was written has the strides of a contiguous one.

Functionalization: the result of an in-place operator has the strides of the functional operator's result.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a, b):
    a.add_(1)
    return torch.select_scatter(a, b, 0, 0)


def inputs(call):
    return (torch.arange(12.0, device=DEVICE).reshape(3, 4)[:, ::2], torch.ones(2, device=DEVICE)), {}
