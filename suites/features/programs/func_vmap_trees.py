"""vmap of a function of a dict, which returns a dict of lists."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x):
    def function(given):
        return {"sum": given["a"].sum(), "rest": [given["a"] * 2, (given["b"][0] + 1,)]}

    return vmap(function, in_dims=({"a": 0, "b": None},))({"a": x, "b": (x[0],)})


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
