"""An IndexError of a tensor operation is caught in the program: it reaches the caller.

Capture: errors of fake tensors do not reach the program's handlers.
"""

import torch

PROGRAM = {"tags": ("differs", "capture")}
DEVICE = "cpu"


def program(a):
    try:
        return a[2]
    except IndexError:
        return a + 1


def inputs(call):
    return (torch.ones(2, device=DEVICE),), {}
