"""A module-level float is changed by someone else between the calls."""

import torch

PROGRAM = {
    "tags": ("state", "guards"),
    "calls": [{}, {"before": "temperature = 0.5"}, {"before": "temperature = 4.0"}],
}
DEVICE = "cpu"

temperature = 2.0


def program(x):
    return torch.softmax(x / temperature, dim=-1)


def inputs(call):
    return (torch.tensor([[0.1, 1.0, -2.0], [0.3, 0.2, 0.5]], device=DEVICE),), {}
