"""What tests of subjects share: a subject of its name, and two programs that show much of what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.registry import load, resolve


def subject_of(name: str) -> Subject:
    """A subject without what it has kept of earlier programs."""
    subject = load(resolve(name))
    subject.reset()
    return subject


def compiled_by(
    subject: Subject, target: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any
) -> Any:
    return subject.compile(CompileRequest(target=target, args=args, kwargs=kwargs, dynamic=dynamic))


def function(x, bias=None, *, scale=2, tag="t"):
    x.mul_(scale)
    return {"sin": x.sin() + bias, "same": x, "more": (x.view(-1), tag, 3)}


class Module(torch.nn.Module):
    """A tied weight, a buffer that is updated, keywords."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.tied = self.linear.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, power: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add_(x.detach().sum(0))
        y = self.norm(self.linear(x)).sin() ** power
        return y, (y @ self.tied).sum()
