"""Python's and numpy's random modules, seeded, choose a permutation and a scale."""

import random

import numpy as np
import torch

PROGRAM = {"tags": ("random", "numpy"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, seed):
    choice = random.Random(seed)
    order = list(range(x.shape[0]))
    choice.shuffle(order)
    scale = float(np.random.RandomState(seed).randint(1, 9))
    return x[order] * scale, order


def inputs(call):
    return (torch.randn(5, device=DEVICE), call), {}
