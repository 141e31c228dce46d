"""A slice of a value that is also a convolution's input has other strides.

Layout of intermediate buffers: the convolution's input is made channels_last.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, weight):
    b = a * 2
    return b[..., 2:], torch.conv2d(b, weight)


def inputs(call):
    image = torch.arange(405.0, device=DEVICE).reshape(3, 15, 3, 3)
    return (image, torch.ones(4, 15, 1, 1, device=DEVICE).requires_grad_()), {}
