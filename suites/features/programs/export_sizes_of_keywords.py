"""Keyword arguments with sizes that vary, given in another order than that of the parameters."""

import torch

PROGRAM = {
    "tags": ("export", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16]}, "bias": {"0": ["batch", 2, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, *, scale, bias):
    return x * scale + bias[:, None]


def inputs(call):
    batch = (4, 6, 2)[call]
    bias = torch.arange(float(batch), device=DEVICE)
    return (torch.randn(batch, 3, device=DEVICE),), {"bias": bias, "scale": torch.full((3,), 2.0, device=DEVICE)}
