"""get_default_dtype and what factories make of Python numbers."""

import torch

PROGRAM = {"tags": ("dtype",)}
DEVICE = "cpu"


def program(x):
    made = torch.tensor(1.5, device=x.device)
    counted = torch.arange(3, device=x.device)
    return (
        x.to(torch.get_default_dtype()) + made,
        made.dtype == torch.get_default_dtype(),
        counted.dtype,
        torch.finfo(x.dtype).eps,
    )


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
