"""An operator of the program that takes a list of tensors and gives a tuple."""

import torch

PROGRAM = {"tags": ("containers",), "calls": [{}, {}]}
DEVICE = "cpu"


@torch.library.custom_op("oracle_features::extremes", mutates_args=())
def extremes(parts: list[torch.Tensor], keep: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.stack(parts[:keep])
    return whole.amin(0), whole.amax(0)


@extremes.register_fake
def _(parts, keep=None):
    return torch.empty_like(parts[0]), torch.empty_like(parts[0])


def program(x, y, keep):
    least, most = extremes([x, y, x * y], keep)
    return most - least, most.shape


def inputs(call):
    return (torch.randn(2, 2, device=DEVICE), torch.randn(2, 2, device=DEVICE), (None, 2)[call]), {}
