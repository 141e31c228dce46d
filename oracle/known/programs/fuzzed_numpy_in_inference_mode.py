"""A global NumPy scalar or array is read in inference mode: a guard fails on the frame it was made for.

Guards: the tensor that is made of it is not the same in inference mode and out of it.
"""

import numpy as np
import torch

PROGRAM = {"tags": ("differs", "capture", "guards"), "calls": [{"grad_mode": "inference"}]}
DEVICE = "cpu"

half = np.float32(0.5)


def program(x):
    return x * float(half)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
