"""f-strings with format specs build dict keys and labels."""

import torch

PROGRAM = {"tags": ("strings", "containers")}
DEVICE = "cpu"


def program(x, prefix):
    named = {f"{prefix}.{index:02d}": row for index, row in enumerate(x)}
    label = f"{prefix!r} has {len(named):>4d} rows of {x.shape[1]}"
    return {f"{name}_{'odd' if int(name[-2:]) % 2 else 'even'}": row * 2 for name, row in named.items()}, label


def inputs(call):
    return (torch.randn(3, 2, device=DEVICE), "layer"), {}
