"""A product in the denormal range; the process must flush no denormals before, during or after."""

import torch

PROGRAM = {
    "tags": ("agrees", "inductor", "process-state"),
    "rung": "inductor",
    "where": "process state: flush-to-zero left on",
    "calls": [{}, {}],
}
DEVICE = "cpu"


def program(x):
    return x * 2.0**-124


def inputs(call):
    return (torch.tensor([0.1875, 1.0, -0.25], device=DEVICE),), {}
