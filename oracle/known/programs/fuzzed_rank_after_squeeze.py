"""A tensor is squeezed in place, then asked for its rank: the answer is that of before.

Dynamo keeps what it knew of the shape when the tensor was made; here it takes the wrong branch, without an error.
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
