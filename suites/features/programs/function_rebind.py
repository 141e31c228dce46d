"""A helper function is replaced between the calls, at module level and in a dict."""

import torch

PROGRAM = {
    "tags": ("guards", "closures"),
    "calls": [{}, {"before": "helper = torch.cos"}, {"before": "table['post'] = lambda y: y - 1"}],
}
DEVICE = "cpu"

table = {"post": torch.abs}


def helper(x):
    return x * 2


def program(x):
    return table["post"](helper(x))


def inputs(call):
    return (torch.tensor([0.5, -1.0, 2.0], device=DEVICE),), {}
