"""A class attribute is changed between the calls, through the class and through an instance."""

import torch

PROGRAM = {
    "tags": ("classes", "guards"),
    "calls": [{}, {"before": "Settings.factor = 5.0"}, {"before": "settings.factor = 7.0"}],
}
DEVICE = "cpu"


class Settings:
    """One attribute."""

    factor = 2.0


settings = Settings()


def program(x):
    return x * settings.factor + Settings.factor


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
