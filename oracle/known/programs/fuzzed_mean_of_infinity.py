"""The mean of var_mean of numbers and an infinity is infinite; eager's is NaN.

Eager's kernel: a running mean, in which infinity is subtracted from itself.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "nan")}
DEVICE = "cpu"


def program(a):
    _, mean = torch.var_mean(a, dim=[1])
    return mean


def inputs(call):
    return (torch.tensor([[float("inf"), 3.0], [1.0, 2.0]], device=DEVICE),), {}
