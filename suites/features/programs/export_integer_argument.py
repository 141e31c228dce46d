"""An integer argument that varies from call to call makes sizes and takes part in arithmetic."""

import torch

PROGRAM = {"tags": ("export", "guards", "shapes"), "dynamic": True, "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, count):
    rows = x.new_zeros(count + 1, x.shape[0])
    return rows + x * count, count * 2 + 1


def inputs(call):
    return (torch.arange(4.0, device=DEVICE), (3, 5, 8)[call]), {}
