"""A nested compile region takes lists and returns dicts, None and numbers."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd", "containers"), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(pair, *, scale=1):
    first, second = pair
    return {"sum": first + second * scale, "none": None, "scale": scale}, [first * second]


def program(x, y):
    one, products = block([x, y], scale=2)
    other, more = block([y, x], scale=2)
    products += more
    return one["sum"] * other["scale"], products, other["none"]


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
