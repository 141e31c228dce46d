"""argmin of a transposed tensor made contiguous: the index is counted in memory order."""

import torch

PROGRAM = {"tags": ("differs", "inductor")}
DEVICE = "cpu"


def program(x):
    return x.t().contiguous().argmin(), (x.t() + 0.5).argmax()


def inputs(call):
    x = torch.zeros(5, 7, device=DEVICE)
    x[3, 1] = -1.0
    x[0, 4] = 2.0
    return (x,), {}
