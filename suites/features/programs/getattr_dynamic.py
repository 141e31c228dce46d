"""__getattr__, getattr with a default, hasattr and setattr by name."""

import torch

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


class Record:
    """Unknown attributes named scale_N are N."""

    known = 3.0

    def __getattr__(self, name):
        if name.startswith("scale_"):
            return float(name.removeprefix("scale_"))
        raise AttributeError(name)


def program(x):
    record = Record()
    setattr(record, "late", x + 1)
    missing = getattr(record, "missing", 0.5)
    return x * record.scale_4 + record.known + missing, record.late, hasattr(record, "other")


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
