"""`dropout(a, training=False)` is `a`: a write to it does not reach `a`.

Decomposition of dropout: a clone.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation")}
DEVICE = "cpu"


def program(a):
    b = F.dropout(a, training=False)
    b.add_(1)
    return a * 2


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
