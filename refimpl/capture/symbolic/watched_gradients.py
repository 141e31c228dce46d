"""Calls that look at the gradient of a tensor of the segment: its graph has to end where the tensor has been made.

Counterpart: none in torch/_dynamo, where a hook on a result of a graph sees the gradient of what comes after that graph alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from refimpl.aot.runtime.autograd_function import is_of_graph
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.values import SequenceValue, TensorValue

WATCHING_METHODS = frozenset({"register_hook", "retain_grad"})
_UNBOUND = (torch.Tensor.register_hook, torch.Tensor.retain_grad)
_GRAD = torch.autograd.grad
_DETACH = (torch.detach_, torch.Tensor.detach_)


class Progress(Protocol):
    """How far the segment is."""

    written_at: int
    writes: dict[int, int]
    by_fake: dict[int, TensorValue]
    stops: frozenset[int]

    def offset(self) -> int: ...

    def see(self, value: Any) -> Any: ...


def apart(state: Progress, value: TensorValue, reason: GraphBreak) -> GraphBreak:
    """The reason, and the instruction behind the one that gave the tensor its history, where the graph uses the tensor itself.

    All gradients of a graph's results reach it at once: what comes by a second result would not pass the first.
    """
    is_written = not value.fake.is_inference() and value.fake._version > 0
    made_at = state.written_at if is_written else value.made_at
    if made_at is None or not value.fake.requires_grad or not value.node.users:
        return reason
    behind = made_at + 1
    if behind in state.stops or behind > state.offset():  # made in a function that was entered, or reached by a jump
        return reason
    return reason.restarting_at(behind)


def before_the_view(state: Progress, value: TensorValue, reason: GraphBreak) -> GraphBreak:
    """The reason to stop at a hook; where the tensor is a view that the segment has made, at the instruction that made it or
    the first other view of that base.

    A graph returns the only view of what it computes as a tensor of its own. A write in place makes the history of a view anew,
    without its hooks, and takes that of a tensor of its own further, with them.
    """
    base = None if value.fake.is_inference() else value.fake._base
    if base is not None and value.fake.requires_grad and value.made_at is not None:
        views = [other for other in state.by_fake.values() if other.fake._base is base and other.made_at is not None]
        made_at = min(view.made_at for view in (value, *views) if view.made_at is not None)
        if made_at not in state.stops:
            return reason.restarting_at(made_at)
    return apart(state, value, reason)


def before_watching(state: Progress, value: TensorValue, name: str) -> GraphBreak:
    """The reason to stop at a method that looks at gradients."""
    reason = GraphBreak("unsupported_operation", what=f"method {name}", kind=value.kind)
    return before_the_view(state, value, reason) if name == "register_hook" else apart(state, value, reason)


def before_reading(state: Progress, value: TensorValue, name: str) -> GraphBreak:
    """The reason to stop at an attribute of a tensor; for its step of autograd, which may get hooks, where the tensor is made."""
    reason = GraphBreak("unsupported_operation", what=f"attribute {name}", kind=value.kind)
    is_made = name == "grad_fn" and value.fake.requires_grad and value.made_at is not None
    return reason.restarting_at(value.made_at) if is_made and value.made_at not in state.stops else reason


def before_assigning(state: Progress, value: Any, name: str) -> GraphBreak:
    """The reason to stop at an assignment to an attribute. What autograd keeps of a tensor goes with its data, and what a graph
    keeps of its results does not."""
    reason = GraphBreak("unsupported_operation", what=f"an assignment to attribute {name}", kind=value.kind)
    return apart(state, value, reason) if name == "data" and isinstance(value, TensorValue) else reason


def keep_watched_apart(state: Progress, target: Any, args: Sequence[Any]) -> None:
    """Raises GraphBreak before a call of such a method as a function."""
    value = state.see(args[0]) if args and any(target is method for method in _UNBOUND) else None
    if isinstance(value, TensorValue):
        raise before_watching(state, value, target.__name__)


def keep_inputs_apart(state: Progress, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises GraphBreak before a call of `torch.autograd.grad` whose inputs are made in the segment and used in it."""
    given = kwargs.get("inputs", args[1] if len(args) > 1 else None) if target is _GRAD else None
    found = state.see(given)
    for item in found.items if isinstance(found, SequenceValue) else [found]:
        value = state.see(item)
        if isinstance(value, TensorValue):
            reason = apart(state, value, GraphBreak("call_of_skipped_function", what="grad"))
            if reason.restart_at is not None:
                raise reason


def before_the_write(state: Progress, value: TensorValue) -> GraphBreak:
    """The reason to stop at `detach_`; at the last write to the tensor where it has views with histories.

    In eager mode the history of a view from before is made anew from the base when it is first asked for: here after `detach_`.
    """
    reason = GraphBreak("unsupported_operation", what="method detach_", kind=value.kind)
    if any(other.fake._base is value.fake and other.fake.requires_grad for other in state.by_fake.values()):
        return reason.restarting_at(state.writes.get(id(value.fake)))
    return reason


def keep_detached_apart(state: Progress, target: Any, args: Sequence[Any]) -> None:
    """Raises GraphBreak before a call of `torch.detach_`."""
    value = state.see(args[0]) if target in _DETACH and args else None
    if isinstance(value, TensorValue):
        raise before_the_write(state, value)


def for_arriving_gradients(tensor: Any, hook: Any) -> Any:
    """The hook for `register_hook`. On a result of a graph it is left out where gradients arrive at other results alone: in eager
    mode what has made this one would not run."""
    if not isinstance(tensor, torch.Tensor) or not is_of_graph(tensor):
        return hook
    return lambda gradient: None if gradient is None else hook(gradient)
