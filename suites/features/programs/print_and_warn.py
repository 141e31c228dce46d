"""print and warnings.warn in the middle; what follows is unaffected."""

import io
import warnings
from contextlib import redirect_stdout

import torch

PROGRAM = {"tags": ("context", "strings")}
DEVICE = "cpu"


def program(x):
    y = x * 2
    caught = io.StringIO()
    with redirect_stdout(caught):
        print("rows", y.shape[0])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("a warning", stacklevel=1)
    return y + 1, caught.getvalue(), [str(item.message) for item in seen]


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
