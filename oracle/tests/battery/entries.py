"""Entry: one subject of the battery on one program, and what makes a callable of it that the judge can be asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from oracle.program import Program
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

Target = Callable[..., Any]
Wrap = Callable[[Target], Target]  # the eager program -> what the subject runs in its place, with memory of its own
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCase:
    """A function and its inputs, judged by `oracle.check` with its own plan of calls on a torch.compile backend."""

    function: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    backend: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A wrong or a right subject."""

    kind: str  # the class: "unstable", "low_precision", "order", ...
    name: str  # the spoiling, or the arithmetic
    program: str  # name of the template
    dtype: torch.dtype
    size: int
    is_wrong: bool
    case: Program | LiveCase
    wrap: Wrap = lambda target: target  # of a Program
    dial: float | None = None  # relative size of the error
    rng: str = "eager"
    is_measured: bool = False  # whether it is what it claims to be depends on values, and is measured (measure.py)
    may_skip: bool = False  # pass_due_to_skip is right too: nothing can be said of the values

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.program}-{dtype_name(self.dtype)}-{self.size}/{self.name}"

    def is_answered(self, verdict: Verdict) -> bool:
        """Whether the judge says of it what it should."""
        if not self.is_wrong:
            return verdict.status in (Status.PASS, Status.PASS_DUE_TO_SKIP)
        return verdict.status.is_finding or (self.may_skip and verdict.status is Status.PASS_DUE_TO_SKIP)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class WrappedProgram:
    """A subject that runs `wrap(program)`."""

    def __init__(self, entry: Entry) -> None:
        self.spec = SubjectSpec(name=entry.name, kind="battery", rng=entry.rng)
        self._wrap = entry.wrap

    def reset(self) -> None:
        """Nothing is kept between cases: every compile wraps anew."""

    def compile(self, request: CompileRequest) -> Target:
        return self._wrap(request.target)

    def counters(self) -> Counters:
        return Counters()


class _Replaced(torch.autograd.Function):
    """Another value with the derivative of the first."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, change: Change) -> Tensor:
        return change(value.detach().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def replaced(value: Tensor, change: Change) -> Tensor:
    """`change(value)`; where autograd goes through `value`, its gradient is as it was."""
    if not value.requires_grad:
        return change(value.detach().clone())
    result = _Replaced.apply(value, change)
    assert isinstance(result, Tensor)
    return result


def outputs_changed(change: Change) -> Wrap:
    """Every float tensor that the program returns is changed, its gradients are not."""

    def wrap(target: Target) -> Target:
        def run(*args: Any, **kwargs: Any) -> Any:
            return tree_map(lambda x: replaced(x, change) if is_float(x) else x, target(*args, **kwargs))

        return run

    return wrap


def gradients_changed(change: Change) -> Wrap:
    """Every gradient of an argument is changed."""

    def wrap(target: Target) -> Target:
        def run(*args: Any, **kwargs: Any) -> Any:
            for arg in args:
                if isinstance(arg, Tensor) and arg.requires_grad:
                    arg.register_hook(change)
            return target(*args, **kwargs)

        return run

    return wrap


def result_changed(change: Callable[[Any], Any]) -> Wrap:
    """The whole result is changed: an output lost, two of them swapped."""

    def wrap(target: Target) -> Target:
        return lambda *args, **kwargs: change(target(*args, **kwargs))

    return wrap


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
