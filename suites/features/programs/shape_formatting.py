"""Shapes, dtypes and strides are formatted into text; two calls, two shapes."""

import torch

PROGRAM = {"tags": ("strings", "shapes"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x):
    text = f"{tuple(x.shape)} {x.dtype} stride={x.stride()} last={x.shape[-1]:03d}"
    return x.sum(), text, str(x.size()), repr(list(x.shape))


def inputs(call):
    return (torch.randn(2 + call, 5, device=DEVICE),), {}
