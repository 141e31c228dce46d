"""An object whose `__len__` returns 2.5 is true where eager raises TypeError."""

import torch

PROGRAM = {"tags": ("differs", "capture"), "expects_raise": True}
DEVICE = "cpu"


class Sized:
    """Its length is no integer."""

    def __len__(self):
        return 2.5  # noqa: PLE0303 - this is what is shown


def program(x):
    return x + 1 if Sized() else x - 1


def inputs(call):
    return (torch.ones(2, device=DEVICE),), {}
