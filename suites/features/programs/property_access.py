"""Properties with a setter, a class method, a static method and a cached value."""

import torch

PROGRAM = {"tags": ("classes", "state"), "calls": [{}, {}]}
DEVICE = "cpu"


class Gain:
    """A gain in decibels with a linear view."""

    steps = 0

    def __init__(self, decibels):
        self.decibels = decibels

    @property
    def linear(self):
        return 10 ** (self.decibels / 20)

    @linear.setter
    def linear(self, value):
        self.decibels = 20 * (value - 1)

    @classmethod
    def count(cls):
        cls.steps += 1
        return cls.steps

    @staticmethod
    def clip(x):
        return x.clamp(-1, 1)


gain = Gain(20.0)


def program(x):
    y = gain.clip(x * gain.linear)
    gain.linear = 1.5
    return y * gain.decibels, Gain.count()


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
