"""Operators with effects in a nested compile region and around it run in the program's order."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


state = [0]


@torch.library.custom_op("features_order::note", mutates_args=())
def note(x: torch.Tensor, digit: int) -> torch.Tensor:
    state[0] = state[0] * 10 + digit if digit else 0
    return x + state[0]


@note.register_fake
def _(x, digit):
    return torch.empty_like(x)


torch.library._register_effectful_op("features_order::note", torch.library.EffectType.ORDERED)


@nested_compile_region
def block(x):
    return note(x, 1) * 2


def program(x, y):
    z = note(x, 0)
    return note(block(note(block(z), 2)), 3) + y


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
