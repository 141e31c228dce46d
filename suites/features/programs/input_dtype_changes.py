"""The dtype and the strides of the input change between the calls."""

import torch

PROGRAM = {"tags": ("guards", "dtype"), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


def program(x):
    return x * 2 + 1, x.sum(dim=0), x.is_contiguous()


def inputs(call):
    x = torch.arange(6, device=DEVICE).reshape(2, 3)
    return (x.float() if call == 0 else x.double() if call == 1 else x if call == 2 else x.float().t(),), {}
