"""An assert over a shape holds, then fails."""

import torch

PROGRAM = {"tags": ("exceptions", "shapes"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


def program(x):
    assert x.shape[0] % 2 == 0, "an even number of rows is needed"
    return x.view(-1, 2).sum(dim=1)


def inputs(call):
    return (torch.randn(4 + 3 * call, 2, device=DEVICE),), {}
