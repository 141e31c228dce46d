"""Combinations with capture_dynamic_output_shape_ops: an internal error.

Capture: an unbacked symbol occurs in no output.
"""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "data-dependent", "shapes"),
    "config": {"torch._dynamo.config.capture_dynamic_output_shape_ops": True},
}
DEVICE = "cpu"


def program(a):
    return torch.combinations(a)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
