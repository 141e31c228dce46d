"""The same after a reset: what was compiled for arguments apart comes out of the cache on disk.

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
