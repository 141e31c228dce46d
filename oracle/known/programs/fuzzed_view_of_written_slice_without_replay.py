"""With view_replay_for_aliased_outputs off, a view of a slice that was written begins at the storage's first element.

Output aliases: as_strided with the offset of the argument's functional value, which is 0.
"""

import torch

PROGRAM = {
    "tags": ("differs", "aot", "aliasing", "mutation"),
    "config": {"torch._functorch.config.view_replay_for_aliased_outputs": False},
}
DEVICE = "cpu"


def program(a):
    a.neg_()
    return a.unsqueeze(0)


def inputs(call):
    return (torch.arange(6.0, device=DEVICE)[1:],), {}
