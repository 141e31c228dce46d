"""A value is printed inside of a loop, a try block and a context manager: what is around is done once."""

import torch

PROGRAM = {"tags": ("control-flow", "context", "exceptions"), "calls": [{"backward": True}]}
DEVICE = "cpu"


class Noted:
    """Counts entries and exits."""

    def __init__(self):
        self.notes = []

    def __enter__(self):
        self.notes.append("enter")
        return self

    def __exit__(self, *error):
        self.notes.append("exit")
        return False


def program(x):
    noted = Noted()
    for index in range(3):
        try:
            with noted:
                x = x * 2
                if index == 1:
                    print(float(x.detach().sum()) > 1e9)
                x = x + index
        finally:
            noted.notes.append(index)
    return x, noted.notes


def inputs(call):
    return (torch.randn(3, device=DEVICE, requires_grad=True),), {}
