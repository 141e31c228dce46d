"""`return a + zeros` of an argument is the argument itself; eager's is a copy.

Joint graph: operations that change nothing are removed, whether or not their result is returned.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    return a + torch.zeros(3, device=a.device)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
