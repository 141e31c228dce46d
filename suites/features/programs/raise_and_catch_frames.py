"""An exception crosses two frames with finally blocks, is re-raised from another, and is caught."""

import torch

PROGRAM = {"tags": ("exceptions",)}
DEVICE = "cpu"


def inner(x, trail):
    try:
        if x.shape[0] == 3:
            raise IndexError("three")
        return x
    finally:
        trail.append("inner")


def middle(x, trail):
    try:
        return inner(x, trail)
    except IndexError as error:
        raise RuntimeError("from middle") from error
    finally:
        trail.append("middle")


def program(x):
    trail = []
    try:
        y = middle(x, trail)
    except RuntimeError as error:
        trail.append(type(error.__cause__).__name__)
        y = x + len(trail)
    return y, trail


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
