"""An exception of a tensor operation is caught in the program: raises TorchRuntimeError.

Capture: errors of fake tensors do not reach the program's handlers.
"""

import torch

PROGRAM = {"tags": ("differs", "capture")}
DEVICE = "cpu"


def program(a):
    try:
        return a.view(7)
    except RuntimeError:
        return a + 1


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
