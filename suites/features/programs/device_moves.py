"""to() with a device: a copy only when something changes, the same tensor otherwise."""

import torch

PROGRAM = {"tags": ("dtype", "aliasing")}
DEVICE = "cpu"


def program(x):
    same = x.to(DEVICE)
    host = x.cpu()
    copied = x.to("cpu", torch.float64, copy=True)
    shape_only = torch.empty_like(x, device="meta") + 1
    return same + 1, host * 2, copied, str(x.device.type), tuple(shape_only.shape), shape_only.device.type


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
