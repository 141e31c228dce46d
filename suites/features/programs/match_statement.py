"""Structural pattern matching over tuples, dicts and classes."""

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


def program(x, command):
    match command:
        case ("scale", float(factor)):
            return x * factor
        case {"op": "shift", **rest}:
            return x + rest["by"]
        case [first, *others]:
            return x + first + sum(others)
        case _:
            return -x


def inputs(call):
    commands = (("scale", 3.0), {"op": "shift", "by": 2}, [1, 2, 3], "other")
    return (torch.randn(3, device=DEVICE), commands[call]), {}
