"""A transposed result is written through unfold; an as_strided view of it made before then has other elements.

Functionalization: the inverse of unfold is contiguous, and as_strided depends on the strides.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    c = b.as_strided((4,), (1,))
    b.unfold(0, 3, 3).add_(1)
    return c * 2


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).reshape(2, 4).t(),), {}
