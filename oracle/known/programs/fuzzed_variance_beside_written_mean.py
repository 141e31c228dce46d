"""The mean of var_mean is written under a mask; the variance is computed about the new mean.

Post-grad: the write is made in place, in a mean that the variance still reads.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "mutation")}
DEVICE = "cpu"


def program(a, mask):
    variance, mean = torch.var_mean(a, -1, keepdim=True)
    mean[mask] = -1.0
    return mean, -variance


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2), torch.tensor([[False], [True]], device=DEVICE)), {}
