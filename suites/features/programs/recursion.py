"""A function that calls itself, over a nested list of tensors."""

import torch

PROGRAM = {"tags": ("control-flow",)}
DEVICE = "cpu"


def program(tree, depth=1):
    if isinstance(tree, list):
        return [program(child, depth + 1) for child in tree]
    return tree * depth


def inputs(call):
    leaf = lambda: torch.randn(2, device=DEVICE)  # noqa: E731
    return ([leaf(), [leaf(), [leaf()]], []],), {}
