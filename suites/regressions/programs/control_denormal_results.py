"""Denormal results: right for a subject that keeps them, known for one that documents flush-to-zero."""

import torch

PROGRAM = {"tags": ("control", "denormals")}
DEVICE = "cpu"


def program(x):
    return x * 1e-30 * 1e-10, torch.exp(x - 100)


def inputs(call):
    return (torch.tensor([0.5, 1.0, 3.0, -2.0], device=DEVICE),), {}
