"""A function of numpy arrays that is called with arrays of two sizes."""

import numpy as np

PROGRAM = {"tags": ("numpy", "shapes"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, y):
    outer = x[:, None] * y[None, :]
    return np.sqrt(np.abs(outer)).sum(axis=0), outer.shape, outer.max() > 1


def inputs(call):
    size = (3, 5)[call]
    return (np.linspace(0.0, 2.0, size), np.arange(4.0)), {}
