"""A custom operator whose result has as many rows as its values say."""

import torch

PROGRAM = {"tags": ("export", "data-dependent", "shapes"), "calls": [{}, {}]}
DEVICE = "cpu"


@torch.library.custom_op("features_export::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@kept.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def program(x, y):
    rows = kept(x)
    return rows * 2, torch.outer(rows, y), rows.shape[0]


def inputs(call):
    x = torch.tensor(([1.0, -1.0, 2.0, 3.0], [-1.0, 4.0, -2.0, 1.0])[call], device=DEVICE)
    return (x, torch.ones(2, device=DEVICE)), {}
