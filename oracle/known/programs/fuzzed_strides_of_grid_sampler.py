"""Grid_sampler_2d with a channels_last grid is not contiguous.

Decompositions that do not keep eager's strides; Inductor has a lowering.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, grid):
    return torch.ops.aten.grid_sampler_2d(a, grid, 0, 0, True)


def inputs(call):
    grid = torch.zeros(2, 3, 3, 2, device=DEVICE).contiguous(memory_format=torch.channels_last)
    return (torch.ones(2, 3, 5, 6, device=DEVICE), grid), {}
