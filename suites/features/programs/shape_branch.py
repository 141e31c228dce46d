"""Python branches on sizes: the threshold is met from both sides and exactly."""

import torch

PROGRAM = {"tags": ("shapes", "guards", "control-flow"), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


def program(x):
    if x.shape[0] > 4 and x.shape[0] != 6:
        return x[:4] * 2
    if x.shape[0] == 4:
        return x * 0
    return x + 1


def inputs(call):
    return (torch.randn((3, 8, 4, 6)[call], 2, device=DEVICE),), {}
