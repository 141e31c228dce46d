"""Combinations with capture_dynamic_output_shape_ops: an internal error.

Capture: a size that is not known yet is in no result.
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
