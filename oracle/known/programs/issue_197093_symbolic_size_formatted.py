"""`f"{x.shape[0]:d}"` of a symbolic size: an internal error.

Capture: the size is passed to the format as text.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(x):
    return x * len(f"{x.shape[0]:d}")


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
