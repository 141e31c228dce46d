"""A result of an inference_mode region of the program is a normal tensor.

Runtime: the region is traced, but outputs are made in the call's mode.
"""

import torch

PROGRAM = {"tags": ("differs", "aot")}
DEVICE = "cpu"


def program(x):
    with torch.inference_mode():
        return x * 2


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
