"""A region that was compiled outside of autocast runs without it inside of autocast.

The second call of the region is the first one's subgraph, which knows nothing of the autocast that begins in between.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "dtype")}
DEVICE = "cpu"
region = torch.compiler.nested_compile_region(lambda x: x @ x)


def program(x):
    outside = region(x)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return outside, region(x)


def inputs(call):
    return (torch.full((2, 2), 1.5, device=DEVICE),), {}
