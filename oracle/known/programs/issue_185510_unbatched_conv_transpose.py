"""conv_transpose2d of an image without a batch, with a gradient and dynamic shapes: fails to lower.

Lowering: sorting strides needs the truth value of a relation of symbols.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(image, weight):
    return F.conv_transpose2d(image, weight)


def inputs(call):
    return (torch.ones(1, 1, 2, device=DEVICE).requires_grad_(), torch.ones(1, 2, 1, 1, device=DEVICE)), {}
