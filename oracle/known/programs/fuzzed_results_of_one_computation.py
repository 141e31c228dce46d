"""The same operator with several results is called twice: the two results are one object and share memory.

Common subexpression elimination in the joint graph: it keeps nodes that are returned, but not those whose items are.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing")}
DEVICE = "cpu"


def program(a):
    return torch.topk(a, 2)[0], torch.topk(a, 2)[0]


def inputs(call):
    return (torch.arange(3.0, device=DEVICE).requires_grad_(),), {}
