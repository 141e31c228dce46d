"""The rank of a tensor after `squeeze_` is that before it.

Dynamo caches the shape from when the tensor was made, and takes the wrong branch here, without an error.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "mutation")}
DEVICE = "cpu"


def program(a):
    b = -a
    b.squeeze_()
    return b + 1 if b.ndim == 1 else b * 100


def inputs(call):
    return (torch.ones(2, 1, device=DEVICE),), {}
