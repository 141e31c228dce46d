"""As_strided of a slice of a result reads the slice as if it were a copy, and beyond its end.

Lowering of as_strided: the slice becomes a separate buffer with another storage.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides", "memory")}
DEVICE = "cpu"


def program(a):
    return (a - 1)[1:].as_strided((3,), (1,), 0)


def inputs(call):
    return (torch.arange(12.0, device=DEVICE).reshape(4, 3),), {}
