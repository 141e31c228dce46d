"""A slice of a tensor is written and transposed in place: wrong elements of the tensor are written.

Runtime epilogue: the argument gets the strides of the functional value before the values are copied to it.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a += 1.5
    a.transpose_(0, 1)


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).reshape(4, 2),), {}


def derive(x):
    return (x[::2],), {}
