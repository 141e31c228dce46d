"""map of a function that branches by each row, over a closed-over tensor, and its gradients."""

import torch
from torch._higher_order_ops.map import map as map_over

PROGRAM = {
    "tags": ("control-flow", "functional"),
    "calls": [{"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program(x, weight):
    return map_over(lambda row: torch.cond(row.sum() > 0, lambda a: a * weight, torch.sin, (row,)), x)


def inputs(call):
    x = torch.randn(4, 3, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, device=DEVICE, requires_grad=True)), {}
