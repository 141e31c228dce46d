"""Fill_diagonal_ of a tensor that begins at an offset of its storage: raises.

Functionalization: fill_diagonal_ becomes as_strided, with an offset into the storage.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    a.fill_diagonal_(5.0)
    return a * 1


def inputs(call):
    return (torch.arange(20.0, device=DEVICE).reshape(5, 4)[1:],), {}
