"""gather with out= and dynamic shapes: raises.

Capture: the meta kernel needs the number of elements, which is symbolic.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a, index, result):
    torch.gather(a, 0, index, out=result)
    return result * 2


def inputs(call):
    index = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    return (torch.arange(6.0, device=DEVICE).reshape(3, 2), index, torch.zeros(1, 1, device=DEVICE)), {}
