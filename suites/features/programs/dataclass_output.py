"""A dataclass built inside the program is returned; its tensors hold small integers."""

from dataclasses import dataclass, field, replace

import torch

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


@dataclass
class Result:
    """What the program returns."""

    value: torch.Tensor
    name: str = "result"
    parts: list = field(default_factory=list)


def program(x):
    result = Result(x + 1)
    result.parts.append(x * 2)
    return replace(result, name=f"{result.name}:{len(result.parts)}")


def inputs(call):
    return (torch.arange(3.0, device=DEVICE),), {}
