"""The branches of torch.cond use a size that varies, and tensors of that size from outside."""

import torch

PROGRAM = {
    "tags": ("export", "control-flow", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16]}},
    "calls": [{"backward": True}, {"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program(x):
    places = torch.arange(x.shape[0], device=DEVICE)[:, None]
    return torch.cond(x.sum() > 0, lambda t: t * places + t.shape[0], lambda t: t.flip(0) - places, (x,))


def inputs(call):
    sign = (1.0, -1.0, 1.0)[call]
    x = (sign * torch.rand((6, 3, 5)[call], 2, device=DEVICE)).requires_grad_()
    return (x,), {}
