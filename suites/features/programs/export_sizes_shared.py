"""Two arguments share a size that varies, and a call outside of its range is refused."""

import torch

PROGRAM = {
    "tags": ("export", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16]}, "y": {"0": ["batch", 2, 16]}},
    "calls": [{}, {}, {}, {"outside": True}],
}
DEVICE = "cpu"


def program(x, y):
    return torch.cat([x, y], dim=1) / x.shape[0], (x * y).sum(0)


def inputs(call):
    batch = (4, 2, 16, 17)[call]
    return (torch.randn(batch, 3, device=DEVICE), torch.randn(batch, 3, device=DEVICE)), {}
