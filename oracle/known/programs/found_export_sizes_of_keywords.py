"""Export raises an assertion for sizes of keyword arguments that `**kwargs` collects."""

import torch

PROGRAM = {"tags": ("differs", "export", "shapes"), "sizes": {"bias": {"0": ["batch", 2, 16]}}, "calls": [{}]}
DEVICE = "cpu"


def program(x, **named):
    return x * 2 + named["bias"].sum()


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {"bias": torch.ones(4, device=DEVICE)}
