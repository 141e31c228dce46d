"""A global tensor that is a view is bound to a copy between the calls: `_base is` is answered as before."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "PART = WHOLE[1:3].clone()"}],
}
DEVICE = "cpu"
WHOLE = torch.ones(4, device=DEVICE)
PART = WHOLE[1:3]


def program(x):
    return x * 2 if PART._base is WHOLE else x + 5


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
