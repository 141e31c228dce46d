"""Elements chosen by a mask, whose number differs between calls, with their gradient."""

import torch

PROGRAM = {"tags": ("data-dependent",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x, limit):
    chosen = torch.masked_select(x, x.detach() > limit)
    return chosen.sin().sum() + chosen.numel(), chosen.shape[0] > 3


def inputs(call):
    return (torch.linspace(-1, 1, 8, device=DEVICE, requires_grad=True), (0.0, 0.5)[call]), {}
