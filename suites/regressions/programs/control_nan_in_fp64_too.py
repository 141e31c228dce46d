"""NaN where fp64 gives NaN too: 0/0, inf - inf, the logarithm of a negative number."""

import torch

PROGRAM = {"tags": ("control", "nan")}
DEVICE = "cpu"


def program(x):
    return torch.log(x), x / x, (x * float("inf")) - (x * float("inf")), torch.nan_to_num(torch.sqrt(x))


def inputs(call):
    return (torch.tensor([-1.0, 0.0, 2.0, float("nan"), float("inf")], device=DEVICE),), {}
