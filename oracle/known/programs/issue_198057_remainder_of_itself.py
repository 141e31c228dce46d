"""`x % x` of negative numbers is 0; eager's is -0.

Vectorised CPU kernel: a - floor(a / b) * b; scalar code takes fmod, as eager does.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "vectorization")}
DEVICE = "cpu"


def program(x):
    return torch.remainder(x, x)


def inputs(call):
    return (torch.full((16,), -1.5, device=DEVICE),), {}
