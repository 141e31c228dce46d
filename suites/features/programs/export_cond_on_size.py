"""torch.cond chooses its branch by a size that varies."""

import torch

PROGRAM = {
    "tags": ("export", "control-flow", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x):
    return torch.cond(x.shape[0] > 4, lambda t: t.sin() * t.shape[0], lambda t: t - 1, (x,))


def inputs(call):
    return (torch.randn((6, 3, 4)[call], 2, device=DEVICE),), {}
