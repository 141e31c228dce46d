"""`x * 0` is 0 where x is infinite or NaN.

Joint graph: products with the integer 0 are folded to 0.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "nan")}
DEVICE = "cpu"


def program(x):
    return x * 0


def inputs(call):
    return (torch.tensor([1.0, float("inf"), float("nan")], device=DEVICE),), {}
