"""After a reset, the graph compiled for separate arguments is loaded from the disk cache for arguments that share memory.

AOTAutograd's cache: which arguments share memory is not in the key.
"""

import torch

PROGRAM = {
    "tags": ("differs", "inductor", "aliasing", "mutation", "guards"),
    "calls": [{}, {"before": "torch._dynamo.reset()"}],
}
DEVICE = "cpu"


def program(a, b):
    b.mul_(3)
    return a + b


def inputs(call):
    a = torch.ones(3, device=DEVICE)
    return (a, a.view(3) if call else torch.ones(3, device=DEVICE)), {}
