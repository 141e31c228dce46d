"""A slice that begins at an offset is written; as_strided then reads from its beginning, not the storage's.

Functionalization: the argument's functional value has no offset.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a.abs_()
    return a.as_strided((3,), (2,), 3) * 1


def inputs(call):
    return (torch.arange(-12.0, 0.0, device=DEVICE)[3:],), {}
