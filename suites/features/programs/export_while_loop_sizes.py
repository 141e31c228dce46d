"""A while_loop that carries an integer tensor and a tensor whose size varies."""

import torch
from torch._higher_order_ops.while_loop import while_loop

PROGRAM = {
    "tags": ("export", "control-flow", "shapes"),
    "sizes": {"x": {"0": ["batch", 2, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, steps):
    rows = x.shape[0]

    def body(step, value):
        return step - 1, value * 0.5 + rows

    step, value = while_loop(lambda step, value: step > 0, body, (steps.clone(), x + 1))
    return step, value


def inputs(call):
    return (torch.randn((4, 7, 2)[call], 3, device=DEVICE), torch.tensor((3, 0, 5)[call], device=DEVICE)), {}
