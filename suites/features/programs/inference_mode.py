"""The program is called under inference mode, after a call without."""

import torch

PROGRAM = {"tags": ("context", "guards"), "calls": [{"grad_mode": "no_grad"}, {"grad_mode": "inference"}]}
DEVICE = "cpu"


def program(x):
    return x * 2 + 1, torch.is_inference_mode_enabled()


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
