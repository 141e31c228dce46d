"""A custom operator with an ordered effect between writes of another one to an argument and a buffer."""

import torch
from torch import nn

PROGRAM = {"tags": ("export", "mutation", "state", "modules"), "is_module": True, "calls": [{}, {}]}
DEVICE = "cpu"


@torch.library.custom_op("features_export::advance", mutates_args={"state"})
def advance(state: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    state.add_(by)
    return state * 2


@advance.register_fake
def _(state, by):
    return torch.empty_like(state)


order = [0]


@torch.library.custom_op("features_export::note", mutates_args=())
def note(x: torch.Tensor, digit: int) -> torch.Tensor:
    order[0] = (order[0] * 10 + digit) % 1000
    return x + order[0]


@note.register_fake
def _(x, digit):
    return torch.empty_like(x)


torch.library._register_effectful_op("features_export::note", torch.library.EffectType.ORDERED)


class Steps(nn.Module):
    """Counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, device=DEVICE))

    def forward(self, x):
        first = note(x, 1)
        doubled = advance(self.total, x)
        note(x, 2)
        advance(x, doubled)
        return note(first, 3), doubled


program = Steps


def inputs(call):
    return (torch.arange(3.0, device=DEVICE) + call,), {}
