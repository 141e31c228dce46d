"""Marks on functions and tensors, `disable`, `run`, and `graph_break`.

Counterpart: torch/_dynamo/decorators.py, torch/compiler/__init__.py
Differs: marks are attributes of the objects, under upstream's names where it has one, so that torch's own marks count here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any

import torch

from refimpl.capture.breaks import BREAK_SETTING
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
    STRICTLY_UNBACKED,
    SUBSTITUTED,
    UNBACKED,
    WEAKLY_DYNAMIC,
)
from refimpl.errors import BadParameter

Indices = int | Iterable[int]
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, MethodDescriptorType, WrapperDescriptorType)


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """Excludes a function or module, and what it calls, from capture. Without `fn`, a decorator.

    recursive: with False, functions that it calls through their own wrappers are captured.
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
    """`disable(fn, recursive=False)`."""
    return disable(fn, recursive=False)


def run(fn: Callable[..., Any] | None = None) -> Any:
    """A function that uses the existing segments of `fn` and captures nothing new. Without `fn`, a context."""
    return RunOnlyContext() if fn is None else RunOnlyContext()(fn)


def graph_break(msg: str = "") -> None:
    """Breaks the graph when it is captured; does nothing otherwise."""


graph_break.__dict__["_torchdynamo_disable"] = True  # capture does not enter it, and so breaks the graph


def skip_frame(msg: str = "") -> None:
    """Does nothing itself; the rest of the function that calls it is not captured."""


skip_frame.__dict__["_torchdynamo_disable"] = True


class error_on_graph_break:  # noqa: N801  a context manager, named as torch names it
    """Within, a graph break is an error (True) or allowed (False). Also a decorator.

    It holds for functions that the block calls, too. An inner region takes precedence over an outer one, and `fullgraph=True`
    over all. A break that is an error raises Unsupported.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        self._is_error = error_on_graph_break
        self._before: list[bool] = []

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        is_error = self._is_error

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(is_error):
                return fn(*args, **kwargs)

        return within

    def __enter__(self) -> None:
        self._before.append(BREAK_SETTING.is_error)
        BREAK_SETTING.is_error = self._is_error

    def __exit__(self, *_: object) -> None:
        BREAK_SETTING.is_error = self._before.pop()


class _NoNestedBreaks(contextlib.ContextDecorator):
    """Within, breaks do not nest. It may be entered again while it is active."""

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(BREAK_SETTING.nests)
        BREAK_SETTING.nests = False

    def __exit__(self, *_: object) -> None:
        BREAK_SETTING.nests = self._before.pop()


def disable_nested_graph_breaks(fn: Callable[..., Any] | None = None) -> Any:
    """A function within which `config.nested_graph_breaks` does not count: a graph that breaks in a function that it calls ends
    before its call. Without `fn`, a context manager and decorator.
    """
    if fn is None:
        return _NoNestedBreaks()

    @functools.wraps(fn)
    def within(*args: Any, **kwargs: Any) -> Any:
        with _NoNestedBreaks():
            return fn(*args, **kwargs)

    return within


def allow_in_graph(fn: Any) -> Any:
    """Makes each call of `fn` one node of the graph, without looking inside. A list or tuple of functions is marked one by one.

    Raises AssertionError for what is not callable.
    """
    return _marked(fn, ALLOWED, "a function of tensors")


def disallow_in_graph(fn: Any) -> Any:
    """Breaks the graph before each call of `fn`."""
    return _marked(fn, BREAKING, "a function")


def forbid_in_graph(fn: Any) -> Any:
    """Makes capturing a call of `fn` an error."""
    return _marked(fn, FORBIDDEN, "a function")


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: where `original_fn` is called, capture interprets the decorated function. Both are called as they are.

    skip_signature_check: the parameters may have other names and defaults. can_constant_fold_through has no effect: a function of
    constants has a constant result.
    Raises TypeError for what is no function and for other parameters, ValueError if the function has been substituted before.
    """
    _check_is_function("substitute_in_graph", original_fn)

    def note(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
        _check_is_function("@substitute_in_graph(...)", traceable_fn)
        if not skip_signature_check:
            _check_signatures(original_fn, traceable_fn)
        if id(original_fn) in SUBSTITUTED:
            raise ValueError(f"{original_fn!r} is substituted already by {SUBSTITUTED[id(original_fn)][1]!r}")
        SUBSTITUTED[id(original_fn)] = (original_fn, traceable_fn)
        return traceable_fn

    return note


def _check_is_function(what: str, function: Any) -> None:
    if not isinstance(function, _FUNCTIONS):
        raise TypeError(f"{what} expects a function but got {type(function)!r}")


def _check_signatures(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    """Raises TypeError if the two have other parameters. A function that takes anything fits any other."""
    try:
        expected = _parameters(inspect.signature(original))
    except ValueError:  # a C function without a text signature
        return
    found, anything = _parameters(inspect.signature(substitute)), ([], set(), {})
    if found != expected and anything not in (found, expected):
        raise TypeError(
            f"{substitute!r} has the parameters {inspect.signature(substitute)}, but should have those of {original!r}: "
            f"{inspect.signature(original)}"
        )


def _parameters(signature: inspect.Signature) -> tuple[list[str], set[str], dict[str, Any]]:
    """Names by position, names by keyword only, and defaults; without `*args` and `**kwargs`."""
    named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return (
        [p.name for p in named if p.kind is not p.KEYWORD_ONLY],
        {p.name for p in named if p.kind is p.KEYWORD_ONLY},
        {p.name: p.default for p in named},
    )


def assume_constant_result(fn: Any) -> Any:
    """Makes the result of a call of `fn`, computed during capture, a constant of the graph."""
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
    """Makes these sizes symbols from the first capture on. It is an error if one of them is specialized to a number.

    min, max: the range of the size. Raises BadParameter for a dimension that the tensor does not have.
    """
    for dim in _dims(t, index):
        _add(t, DYNAMIC, dim)
        if min is not None or max is not None:
            ranges = getattr(t, RANGES, set())
            setattr(t, RANGES, ranges | {_Range(dim, min, max)})


def maybe_mark_dynamic(t: Any, index: Indices) -> None:
    """`mark_dynamic`, but a size may be specialized to a number."""
    for dim in _dims(t, index):
        _add(t, WEAKLY_DYNAMIC, dim)


def mark_unbacked(t: Any, index: Indices, *, strict: bool = False, **hints: Any) -> None:
    """Makes these sizes unbacked symbols. strict: it is an error if one of them is specialized to a number."""
    for dim in _dims(t, index):
        _add(t, UNBACKED, dim)
        if strict:
            _add(t, STRICTLY_UNBACKED, dim)


def mark_static(t: Any, index: Indices | None = None) -> None:
    """Makes these sizes numbers whatever the settings say; all sizes without `index`."""
    if not isinstance(t, torch.Tensor):  # a module or a class of modules
        t._dynamo_marked_static = True
        return
    for dim in range(t.dim()) if index is None else _dims(t, index):
        _add(t, STATIC, dim)


def mark_static_address(t: Any, guard: bool = False) -> None:
    """Promises that the tensor does not move in memory. Raises TypeError for what is no tensor."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address of a {type(t).__name__}\n  expected: a tensor")
    setattr(t, "_dynamo_static_input_type", "guarded" if guard else "unguarded")


# Marking a tensor is an effect that a graph cannot express.
for _marker in (mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static, mark_static_address):
    FORBIDDEN[id(_marker)] = _marker


class _Range(tuple[int, int | None, int | None]):
    """A dimension and the bounds of its size."""

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
