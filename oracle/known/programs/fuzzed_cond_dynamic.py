"""`torch.linalg.cond(a, "fro")` with dynamic shapes: raises.

Fake tensors: its kernel asks for numel(), which a symbolic size does not answer.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a):
    return torch.linalg.cond(a, "fro")


def inputs(call):
    return (torch.eye(2, device=DEVICE),), {}
