"""Index_copy into a column of a result has the column's strides; eager's is contiguous.

Post-grad: the copy is removed, and the column itself is written.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, index, source):
    return torch.index_copy(a.sin().select(1, 1), 0, index, source)


def inputs(call):
    return (torch.ones(4, 4, device=DEVICE), torch.tensor([1], device=DEVICE), torch.ones(1, device=DEVICE)), {}
