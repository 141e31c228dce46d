"""An operator of the program that writes to two of its arguments, one of them a view of another argument."""

import torch

PROGRAM = {"tags": ("mutation", "aliasing"), "calls": [{}, {}]}
DEVICE = "cpu"


@torch.library.custom_op("oracle_features::write_both", mutates_args={"first", "second"})
def write_both(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    first.copy_(x + 1)
    second.add_(x)


def program(x, whole):
    made = torch.zeros_like(x)
    write_both(x, made, whole[1])
    return made * 2, whole.sum(dim=0)


def inputs(call):
    return (torch.randn(3, device=DEVICE), torch.ones(2, 3, device=DEVICE)), {}
