"""A frozen dataclass argument is read, compared and unpacked with dataclasses.astuple's like."""

from dataclasses import dataclass, fields

import torch

PROGRAM = {"tags": ("classes",), "calls": [{}, {}]}
DEVICE = "cpu"


@dataclass(frozen=True, order=True)
class Config:
    """Two numbers."""

    scale: float
    shift: int = 1


default = Config(2.0)


def program(x, scale):
    config = Config(scale, shift=3)
    larger = config > default
    names = [item.name for item in fields(config)]
    return x * config.scale + config.shift, larger, config == Config(2.5, 3), names


def inputs(call):
    return (torch.randn(3, device=DEVICE), (2.5, 1.5)[call]), {}
