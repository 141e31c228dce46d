"""where with one argument gives both index tensors whole, its output shapes captured."""

import torch

PROGRAM = {
    "tags": ("untried", "gpu", "inductor", "data-dependent"),
    "rung": "inductor",
    "where": "unbacked sizes",
    "config": {
        "torch._dynamo.config.capture_dynamic_output_shape_ops": True,
        "torch._dynamo.config.capture_scalar_outputs": True,
    },
}
DEVICE = "cpu"


def program(x):
    return torch.where(x)


def inputs(call):
    return (torch.randn(2, 2048, device=DEVICE),), {}
