"""A custom operator writes to two views of one tensor."""

import torch

PROGRAM = {"tags": ("mutation",), "calls": [{}]}
DEVICE = "cpu"


@torch.library.custom_op("features_views::exchange", mutates_args={"a", "b"})
def exchange(a: torch.Tensor, b: torch.Tensor) -> None:
    saved = a.clone()
    a.copy_(b)
    b.copy_(saved)


def program(x, y):
    z = x * 2
    exchange(z[0], z[1])
    exchange(y[:, 0], y[:, 1])
    return z, z.sum(dim=0) + y[0]


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
