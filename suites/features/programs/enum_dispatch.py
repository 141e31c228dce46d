"""Enums and flags choose the computation; calls go through the members."""

from enum import Enum, Flag, auto

import torch

PROGRAM = {"tags": ("classes", "control-flow"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


class Mode(Enum):
    """How to reduce."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class Option(Flag):
    """What else to do."""

    ABS = auto()
    NEGATE = auto()


def program(x, name):
    mode = Mode(name)
    options = Option.ABS | Option.NEGATE if mode is Mode.MEAN else Option.ABS
    if Option.ABS in options:
        x = x.abs()
    if Option.NEGATE in options:
        x = -x
    value = {Mode.SUM: torch.sum, Mode.MEAN: torch.mean}.get(mode, torch.clone)(x)
    return value, mode.name, [member.value for member in Mode]


def inputs(call):
    return (torch.randn(3, device=DEVICE), ("sum", "mean", "none")[call]), {}
