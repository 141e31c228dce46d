"""size() != (5, 1, 2, 3) first holds, then meets exactly that shape."""

import torch

PROGRAM = {
    "tags": ("agrees", "capture", "guards", "shapes"),
    "rung": "dynamo",
    "where": "shape guards",
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x):
    if x.size() != (5, 1, 2, 3):
        return x.cos()
    return x.sin()


def inputs(call):
    return (
        torch.ones((4, 1, 2, 3), device=DEVICE) if call == 0 else torch.ones((4 + call, 1, 2, 3), device=DEVICE),
    ), {}
