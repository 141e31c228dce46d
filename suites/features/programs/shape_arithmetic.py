"""Sizes are added, divided, compared and used in views, pads and factories."""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("shapes",), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x):
    rows, columns = x.shape
    half = columns // 2
    padded = F.pad(x, (0, (-columns) % 4))
    blocks = padded.view(rows, -1, 4)
    ramp = torch.arange(rows * half, device=x.device).view(rows, half)
    return (
        blocks.sum(dim=-1),
        ramp,
        torch.cat([x[:, half:], x[:, :half]], dim=1),
        max(rows, columns) - min(rows, columns),
    )


def inputs(call):
    return (torch.randn(*((2, 6), (3, 8), (5, 5))[call], device=DEVICE),), {}
