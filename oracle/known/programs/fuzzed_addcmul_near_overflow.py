"""`addcmul_` of an infinity and a product that overflows: NaN; eager, which rounds once, keeps the infinity.

Capture: `addcmul_` with a `value` is written as two products and a sum.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "precision")}
DEVICE = "cpu"


def program(a, b):
    return a.addcmul_(b, b, value=0.5)


def inputs(call):
    return (torch.tensor([1.0, -float("inf")], device=DEVICE), torch.tensor([1.0, -3e38], device=DEVICE)), {}
