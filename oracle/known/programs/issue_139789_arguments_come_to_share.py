"""Two arguments, one of them written, share their memory from the second call on: the other one is read as it was before.

Guards: there is no guard that arguments do not overlap.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation", "guards"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(a, b):
    b.mul_(2)
    return a + b


def inputs(call):
    a = torch.ones(3, device=DEVICE)
    return (a, a.view(3) if call else torch.ones(3, device=DEVICE)), {}
