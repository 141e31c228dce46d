"""torch.cond inside of a branch of torch.cond, with a tensor from around, and its gradients."""

import torch

PROGRAM = {
    "tags": ("control-flow", "functional"),
    "calls": [{"backward": True}, {"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program(x, offset):
    def positive(y):
        return torch.cond(y.amax() > 2, lambda z: z * offset, lambda z: z - offset, (y,))

    return torch.cond(x.sum() > 0, positive, lambda y: y.sin(), (x,))


def inputs(call):
    x = torch.full((3,), (3.0, 1.0, -1.0)[call], device=DEVICE, requires_grad=True)
    return (x, torch.full((3,), 5.0, device=DEVICE, requires_grad=True)), {}
