"""Floor division of floats whose quotient lies just below an integer: 1.0 // 0.1 is 9."""

import torch

PROGRAM = {"tags": ("differs", "inductor")}
DEVICE = "cpu"


def program(a, b):
    return a // b, torch.div(a, b, rounding_mode="floor")


def inputs(call):
    a = torch.tensor([1.0, 0.5, 6.0, 7.0], dtype=torch.float64, device=DEVICE)
    return (a, torch.tensor([0.1, 0.1, 0.2, 2.0], dtype=torch.float64, device=DEVICE)), {}
