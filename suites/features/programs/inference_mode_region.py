"""inference_mode as a region inside the program."""

import torch

PROGRAM = {"tags": ("context",)}
DEVICE = "cpu"


def program(x):
    with torch.inference_mode():
        inside = x * 2
    return x + 1, inside.is_inference(), torch.is_inference_mode_enabled()


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
