"""An argument's negative bit is ignored."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return a + 1


def inputs(call):
    return (torch.tensor([1 + 2j, 3 + 4j], device=DEVICE).conj().imag,), {}
