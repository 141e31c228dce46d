"""`slice_scatter` of a tensor whose rows overlap: eager's result overlaps like its argument, Inductor's lacks one of the values.

Lowering of `slice_scatter`, into a result with the argument's strides. Neither is right for a tensor without overlaps.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, b):
    return a.slice_scatter(b, 1, 4, 5, 2)


def inputs(call):
    memory = torch.arange(6.0, device=DEVICE)
    return (memory.as_strided((2, 5), (1, 1)), torch.tensor([[10.0], [20.0]], device=DEVICE)), {}
