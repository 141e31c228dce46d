"""torch._foreach_* updates a list of tensors in place and out of place."""

import torch

PROGRAM = {"tags": ("mutation", "containers")}
DEVICE = "cpu"


def program(parameters, gradients):
    scaled = torch._foreach_mul(gradients, 0.5)
    torch._foreach_add_(parameters, scaled, alpha=-1)
    return scaled, torch._foreach_norm(parameters)


def inputs(call):
    make = lambda: [torch.randn(size, device=DEVICE) for size in (2, 3)]  # noqa: E731
    return (make(), make()), {}
