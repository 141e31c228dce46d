"""manual_seed inside the program makes its numbers the same on every call."""

import torch

PROGRAM = {
    "tags": ("random", "state"),
    "calls": [{}, {}],
    "policy": {
        "is_random": True,
        "reason": "the seed is set inside: eager repeats itself, a subject with a generator of its own need not repeat eager",
    },
}
DEVICE = "cpu"


def program(x):
    torch.manual_seed(3)
    return x + torch.rand(4, device=x.device), torch.randint(0, 10, (3,), device=x.device)


def inputs(call):
    return (torch.zeros(4, device=DEVICE),), {}
