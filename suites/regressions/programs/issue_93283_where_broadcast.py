"""where with a (1, 1) condition and operands of other shapes."""

import torch

PROGRAM = {"tags": ("agrees", "inductor"), "rung": "inductor", "where": "lowering"}
DEVICE = "cpu"


def program(condition, x, y):
    return torch.where(condition, x, y)


def inputs(call):
    condition = torch.tensor([[True]], device=DEVICE)
    return (condition, torch.rand(13, 7, 3, device=DEVICE), torch.rand(1, 1, device=DEVICE)), {}
