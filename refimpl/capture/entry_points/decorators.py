"""Marks on functions and tensors, `disable`, `run`, and the break that a program asks for.

Counterpart: torch/_dynamo/decorators.py, torch/compiler/__init__.py
Differs: marks are attributes of the objects, upstream's names where it has one, so that marks which torch made count here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from refimpl.capture.entry_points.contexts import DisableContext, RunOnlyContext, innermost_fn
from refimpl.capture.public.marks import (
    ALLOWED,
    BREAKING,
    CONSTANT_RESULT,
    DYNAMIC,
    FORBIDDEN,
    LEFT_OUT_ALONE,
    RANGES,
    STATIC,
    UNBACKED,
    WEAKLY_DYNAMIC,
)
from refimpl.errors import BadParameter

Indices = int | Iterable[int]


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """A function or module that is not captured, and neither is what it calls; without `fn` a decorator.

    recursive: False: what it calls through wrappers of its own is captured.
    """
    if fn is None:
        return lambda function: disable(function, recursive, reason=reason, wrapping=wrapping)
    if not recursive:
        inner = innermost_fn(fn)
        target: Any = inner.forward if isinstance(inner, torch.nn.Module) else inner
        function = getattr(target, "__func__", target)
        setattr(function, "_torchdynamo_disable", True)
        setattr(function, LEFT_OUT_ALONE, True)
        return inner
    return DisableContext(msg=reason, wrapping=wrapping)(fn)


def skip(fn: Any = None) -> Any:
    """`disable` of the function alone."""
    return disable(fn, recursive=False)


def run(fn: Callable[..., Any] | None = None) -> Any:
    """A function that uses what was captured of `fn` already, and captures nothing new; without `fn` a context."""
    return RunOnlyContext() if fn is None else RunOnlyContext()(fn)


def graph_break(msg: str = "") -> None:
    """Does nothing; while it is captured, the graph ends here."""


graph_break.__dict__["_torchdynamo_disable"] = True  # which capture leaves alone, and so has to stop for


def skip_frame(msg: str = "") -> None:
    """Does nothing; the rest of the function that calls it is not captured."""


skip_frame.__dict__["_torchdynamo_disable"] = True


def allow_in_graph(fn: Any) -> Any:
    """Calls of `fn` become one node each, which is not looked into. A list or tuple of functions is marked one by one.

    Raises AssertionError for what is not callable.
    """
    return _marked(fn, ALLOWED, "a function of tensors")


def disallow_in_graph(fn: Any) -> Any:
    """The graph ends before a call of `fn`."""
    return _marked(fn, BREAKING, "a function")


def forbid_in_graph(fn: Any) -> Any:
    """Capturing a call of `fn` is an error."""
    return _marked(fn, FORBIDDEN, "a function")


def assume_constant_result(fn: Any) -> Any:
    """What a call of `fn` gives while it is captured is a constant of the graph."""
    assert not hasattr(fn, CONSTANT_RESULT) or getattr(fn, CONSTANT_RESULT), f"{fn!r} is marked to be none"
    setattr(fn, CONSTANT_RESULT, True)
    return fn


def _marked(fn: Any, mark: dict[int, Any], expected: str) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_marked(each, mark, expected) for each in fn]
    assert callable(fn), f"{fn!r}, a {type(fn).__name__}\n  expected: {expected}"
    for other in (ALLOWED, BREAKING, FORBIDDEN):
        other.pop(id(fn), None)
    mark[id(fn)] = fn
    return fn


def mark_dynamic(
    t: Any, index: Indices, *, hint_override: int | None = None, min: int | None = None, max: int | None = None,
    specialize_on: list[Any] | None = None,
) -> None:  # fmt: skip
    """The sizes are symbols from the first capture on; that one of them has to be a number is an error.

    min, max: the range of a size. Raises BadParameter for a dimension that the tensor has not.
    """
    for dim in _dims(t, index):
        _add(t, DYNAMIC, dim)
        if min is not None or max is not None:
            ranges = getattr(t, RANGES, set())
            setattr(t, RANGES, ranges | {_Range(dim, min, max)})


def maybe_mark_dynamic(t: Any, index: Indices) -> None:
    """The same, and that a size has to be a number is none."""
    for dim in _dims(t, index):
        _add(t, WEAKLY_DYNAMIC, dim)


def mark_unbacked(t: Any, index: Indices, **hints: Any) -> None:
    """The sizes are symbols of which no value is known."""
    for dim in _dims(t, index):
        _add(t, UNBACKED, dim)


def mark_static(t: Any, index: Indices | None = None) -> None:
    """The sizes are numbers, whatever the settings say; without `index` all of them."""
    if not isinstance(t, torch.Tensor):  # a module or a class of modules
        t._dynamo_marked_static = True
        return
    for dim in range(t.dim()) if index is None else _dims(t, index):
        _add(t, STATIC, dim)


def mark_static_address(t: Any, guard: bool = False) -> None:
    """The tensor stays where it is in memory. Raises TypeError for what is no tensor."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address of a {type(t).__name__}\n  expected: a tensor")
    setattr(t, "_dynamo_static_input_type", "guarded" if guard else "unguarded")


# Marking a tensor is an effect that a graph cannot have.
for _marker in (mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static, mark_static_address):
    FORBIDDEN[id(_marker)] = _marker


class _Range(tuple[int, int | None, int | None]):
    """A dimension and the limits of its size."""

    def __new__(cls, dim: int, min: int | None, max: int | None) -> _Range:
        return super().__new__(cls, (dim, min, max))

    dim = property(lambda self: self[0])
    min = property(lambda self: self[1])
    max = property(lambda self: self[2])


def _dims(tensor: torch.Tensor, index: Indices) -> list[int]:
    dims = [index] if isinstance(index, int) else list(index)
    for dim in dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise BadParameter(seen=f"dimension {dim} of a tensor of {tuple(tensor.shape)}", expected="one that it has")
    return [dim % tensor.dim() for dim in dims]


def _add(tensor: torch.Tensor, name: str, dim: int) -> None:
    setattr(tensor, name, {*getattr(tensor, name, ()), dim})
