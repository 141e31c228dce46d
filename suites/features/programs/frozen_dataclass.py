"""A frozen dataclass is made, replaced and refuses an assignment."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import dataclasses

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


@dataclasses.dataclass(frozen=True)
class Config:
    """Two numbers."""

    a: int
    b: float = 0.5


def program(x):
    config = dataclasses.replace(Config(2), b=1.5)
    try:
        config.a = 5
    except dataclasses.FrozenInstanceError:
        x = x + 1
    return x * config.a * config.b, config


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
