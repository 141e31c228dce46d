"""A point outside of an image with an infinity at its edge: NaN; eager has 0.

Decomposition of `grid_sampler_2d`: for a point outside, an element inside is read and multiplied by 0.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "nan")}
DEVICE = "cpu"


def program(image, grid):
    return F.grid_sample(image, grid, align_corners=False)


def inputs(call):
    image = torch.tensor([[[[float("inf"), 1.0], [2.0, 3.0]]]], device=DEVICE)
    return (image, torch.full((1, 1, 1, 2), 1.5, device=DEVICE)), {}
