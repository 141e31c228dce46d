"""`a.clone()[:2].clone()` shares the argument's memory.

Post-grad: no-op removal drops both clones.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    return a.clone()[:2].clone()


def inputs(call):
    return (torch.ones(4, device=DEVICE),), {}
