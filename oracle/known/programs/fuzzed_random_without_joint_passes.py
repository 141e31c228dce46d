"""With use_joint_graph_passes off, random numbers fail to lower.

Lowering: the pass that replaces random operators is off too.
"""

import torch
import torch.nn.functional as F

PROGRAM = {
    "tags": ("differs", "inductor", "random"),
    "config": {"torch._inductor.config.use_joint_graph_passes": False},
}
DEVICE = "cpu"


def program(a):
    return F.dropout(a)


def inputs(call):
    return (torch.ones(4, device=DEVICE),), {}
