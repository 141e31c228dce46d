"""The mean of var_mean overflows where eager's does not.

Lowering of var_mean: running means in the tensor's dtype; eager accumulates in double.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "precision")}
DEVICE = "cpu"


def program(x):
    _, mean = torch.var_mean(x)
    return mean


def inputs(call):
    return (torch.tensor([-3e38, -3e38, 1e38, 1e38], device=DEVICE),), {}
