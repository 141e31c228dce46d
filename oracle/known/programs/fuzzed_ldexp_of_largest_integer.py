"""`torch.ldexp(1.0, 2147483647)` is 0; eager has infinity.

Lowering: the exponent overflows.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "integer")}
DEVICE = "cpu"


def program(a, exponent):
    return torch.ldexp(a, exponent)


def inputs(call):
    exponent = torch.tensor([2147483647, 128, 2, -2147483648], dtype=torch.int32, device=DEVICE)
    return (torch.ones(4, device=DEVICE), exponent), {}
