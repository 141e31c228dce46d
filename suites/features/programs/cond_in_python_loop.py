"""torch.cond in a Python loop: its functions read the loop's variable, which has another value when gradients are computed."""

import torch

PROGRAM = {
    "tags": ("closures", "control-flow", "functional"),
    "calls": [{"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program(x):
    for scale in (2.0, 3.0):
        x = torch.cond(x.sum() > 0, lambda y: y * scale, lambda y: y.sin() * scale, (x,))  # noqa: B023
    return x


def inputs(call):
    return (torch.full((3,), (2.0, -2.0)[call], device=DEVICE, requires_grad=True),), {}
