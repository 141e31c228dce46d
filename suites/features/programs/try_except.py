"""try, except, else and finally around a dict look-up; calls take each path."""

import torch

PROGRAM = {"tags": ("exceptions",), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, name):
    trail = []
    try:
        factor = {"double": 2.0, "half": 0.5}[name]
        x = x * factor
    except KeyError as error:
        trail.append(f"no {error.args[0]}")
        x = -x
    else:
        trail.append("found")
    finally:
        trail.append("done")
        x = x + 1
    return x, trail


def inputs(call):
    return (torch.randn(3, device=DEVICE), ("double", "third", "half")[call]), {}
