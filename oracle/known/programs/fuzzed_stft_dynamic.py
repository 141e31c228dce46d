"""Stft with dynamic shapes: raises.

Capture: the meta kernel of the Fourier transform resizes its result, which symbolic sizes do not permit.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a):
    return torch.stft(a, 4, center=False, return_complex=True)


def inputs(call):
    return (torch.ones(4, device=DEVICE),), {}
