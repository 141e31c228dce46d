"""Weights are changed in place between the calls, under no_grad and by load_state_dict."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("modules", "guards"),
    "is_module": True,
    "calls": [
        {"training": False, "grad_mode": "no_grad"},
        {"grad_mode": "no_grad", "before": "with torch.no_grad(): target.weight.mul_(2)"},
        {
            "grad_mode": "no_grad",
            "before": "target.load_state_dict({k: torch.ones_like(v) for k, v in target.state_dict().items()})",
        },
    ],
}
DEVICE = "cpu"


def program():
    return nn.Linear(3, 2, device=DEVICE)


def inputs(call):
    return (torch.tensor([[1.0, -2.0, 3.0]], device=DEVICE),), {}
