"""NumPy's result from an array that overlaps itself is contiguous; compiled it keeps the order of the strides.

Capture: NumPy's calls are torch's.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.from_numpy(a.numpy() * 2.0)


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).as_strided((2, 3), (1, 1)),), {}
