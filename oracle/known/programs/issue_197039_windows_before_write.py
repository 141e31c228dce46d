"""Windows of an argument are used before and after it is written under no_grad: the gradient is that of the new values.

Partitioner: backward recomputes values from the argument, which has been written since.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    windows = a.unfold(0, 1, 1)
    before = windows * 3
    with torch.no_grad():
        a.neg_()
    return before * windows


def inputs(call):
    return (torch.arange(1.0, 3.0, device=DEVICE).requires_grad_(),), {}
