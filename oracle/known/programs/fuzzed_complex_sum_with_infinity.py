"""A complex sum with `inf + 1j` is written, and read as real numbers: a number for the imaginary part; eager has NaN.

Decomposition of complex addition, by parts; eager multiplies by alpha = 1 first.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "nan", "mutation")}
DEVICE = "cpu"


def program(a, b):
    torch.view_as_complex(a).add_(b)
    return a * 1


def inputs(call):
    b = torch.tensor([complex(1, 0), complex(float("inf"), 1)], device=DEVICE)
    return (torch.ones(2, 2, device=DEVICE), b), {}
