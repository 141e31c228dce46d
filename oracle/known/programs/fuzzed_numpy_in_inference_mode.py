"""A global NumPy scalar or array is read in inference mode: a guard fails right after it was made.

Guards: the tensor made from it differs between inference mode and normal mode.
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
