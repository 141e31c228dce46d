"""A custom operator writes to a list of tensors and to an optional one."""

import torch

PROGRAM = {"tags": ("mutation",), "calls": [{}]}
DEVICE = "cpu"


@torch.library.custom_op("features_lists::add_up", mutates_args={"total", "parts"})
def add_up(total: torch.Tensor | None, parts: list[torch.Tensor]) -> None:
    for part in parts:
        part.add_(1)
        if total is not None:
            total.add_(part)


def program(x, y):
    total = torch.zeros_like(x[0])
    add_up(total, [x[0], y[1], x[2]])
    add_up(None, [total])
    return total, x + y


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
