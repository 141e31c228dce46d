"""The results of unbind_copy share their memory.

The copies are removed, and the results are views of one buffer.
"""

from typing import Any

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    parts: Any = torch.unbind_copy(a + 1, 0)  # torch's stub says None
    return parts[0], parts[1]


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}
