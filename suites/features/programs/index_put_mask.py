"""Assignment by boolean mask, by index tensors and by slice with step."""

import torch

PROGRAM = {"tags": ("mutation", "data-dependent")}
DEVICE = "cpu"


def program(x, rows):
    y = x.clone()
    y[y > 0] = -1.0
    y[rows, torch.zeros_like(rows)] = torch.arange(rows.numel(), dtype=y.dtype, device=y.device)
    y[::2, -1] += 10
    return y


def inputs(call):
    return (torch.randn(5, 3, device=DEVICE), torch.tensor([4, 0, 2], device=DEVICE)), {}
