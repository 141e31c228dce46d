"""Views whose sizes are products and quotients of sizes that vary."""

import torch

PROGRAM = {
    "tags": ("export", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16], "1": ["length", 2, 16]}},
    "calls": [{"backward": True}, {"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program(x):
    flat = x.reshape(-1, x.shape[2])
    halves = flat.unflatten(1, (2, x.shape[2] // 2))
    return halves.sum(1).reshape(x.shape[0], -1), flat.numel() // 4


def inputs(call):
    batch, length = ((3, 5), (5, 3), (2, 7))[call]
    return (torch.randn(batch, length, 4, device=DEVICE, requires_grad=True),), {}
