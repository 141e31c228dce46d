"""Complex arithmetic, view_as_real, conjugate views, abs and angle."""

import torch

PROGRAM = {"tags": ("dtype", "aliasing"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    z = torch.complex(x, y)
    w = z * z.conj() + 2j * z
    return torch.view_as_real(w), w.abs(), w.real


def inputs(call):
    x = torch.tensor([0.5, -1.0, 2.0], device=DEVICE, requires_grad=True)
    return (x, torch.tensor([1.0, 0.25, -0.5], device=DEVICE, requires_grad=True)), {}
