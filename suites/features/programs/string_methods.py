"""split, join, startswith, replace and partition choose what is computed."""

import torch

PROGRAM = {"tags": ("strings", "control-flow"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, recipe):
    for step in recipe.strip().split(","):
        name, _, amount = step.partition("=")
        if name.startswith("add"):
            x = x + float(amount)
        elif name.replace("-", "_") == "scale_by":
            x = x * int(amount)
    return x, "+".join(part.upper() for part in recipe.split(",") if part)


def inputs(call):
    return (torch.randn(3, device=DEVICE), (" add=1.5,scale-by=2", "scale-by=3,add=0.5,")[call]), {}
