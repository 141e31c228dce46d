"""A custom operator writes to a list whose tensors share memory with another argument."""

import torch

PROGRAM = {"tags": ("mutation",), "calls": [{}]}
DEVICE = "cpu"


@torch.library.custom_op("features_aliased::running", mutates_args={"x", "ys"})
def running(x: torch.Tensor, ys: list[torch.Tensor]) -> None:
    for y in ys:
        x.add_(y.sum())
        y.add_(1)


def program(x, y):
    running(x[0], [x[1], y[0], x[2]])
    return x.sum() + y.sum()


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
