"""A list as default argument is shared by the calls."""

import torch

PROGRAM = {"tags": ("state", "containers"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, seen=[]):  # noqa: B006 - the shared default is what is checked
    seen.append(len(seen))
    return x + len(seen), list(seen)


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
