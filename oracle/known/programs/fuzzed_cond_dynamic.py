"""`torch.linalg.cond(a, "fro")` with dynamic shapes: raises.

Fake tensors: its meta kernel calls numel(), which fails with symbolic sizes.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a):
    return torch.linalg.cond(a, "fro")


def inputs(call):
    return (torch.eye(2, device=DEVICE),), {}
