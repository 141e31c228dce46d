"""contiguous, channels_last, permute and reshape: the strides are the caller's to see."""

import torch

PROGRAM = {"tags": ("aliasing", "shapes")}
DEVICE = "cpu"


def program(x):
    last = x.to(memory_format=torch.channels_last)
    permuted = x.permute(0, 2, 3, 1)
    return last + 1, permuted, permuted.contiguous(), x.reshape(2, -1), last.is_contiguous()


def inputs(call):
    return (torch.randn(2, 3, 4, 5, device=DEVICE),), {}
