"""Named tuples come in, are updated with _replace, and go out."""

from collections import namedtuple

import torch

PROGRAM = {"tags": ("classes", "containers")}
DEVICE = "cpu"

State = namedtuple("State", ["hidden", "cell"])


def program(x, hidden, cell):
    state = State(hidden, cell=cell)
    state = state._replace(hidden=torch.tanh(x + state.hidden))
    head, tail = state
    return State(head, tail + head), state._fields


def inputs(call):
    return tuple(torch.randn(3, device=DEVICE) for _ in range(3)), {}
