"""A view of an argument is made in an inference_mode region of the program: an internal error.

AOTAutograd: a view made there has no version counter, and AOTAutograd sets one.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd")}
DEVICE = "cpu"


def program(a):
    with torch.inference_mode():
        b = a[0]
    return b


def inputs(call):
    return (torch.ones(2, device=DEVICE),), {}
