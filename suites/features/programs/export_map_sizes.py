"""map over rows whose number varies, with a weight from outside."""

import torch
from torch._higher_order_ops import map as map_rows

PROGRAM = {
    "tags": ("export", "control-flow", "functional", "shapes"),
    "sizes": {"x": {"0": ["batch", 3, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, weight):
    return map_rows(lambda row, w: (row @ w).relu() + row.sum(), x, weight)


def inputs(call):
    return (torch.randn((4, 3, 9)[call], 3, device=DEVICE), torch.randn(3, 2, device=DEVICE)), {}
