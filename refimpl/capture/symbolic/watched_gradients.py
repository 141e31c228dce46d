"""Calls that look at the gradient of a tensor of the segment: its graph has to end where the tensor has been made.

Counterpart: none in torch/_dynamo, where a hook on a result of a graph sees the gradient of what comes after that graph alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.aot.runtime.autograd_function import is_of_graph
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.tensor import Progress, TensorValue, apart, before_the_write, before_watching

_UNBOUND = (torch.Tensor.register_hook, torch.Tensor.retain_grad)
_GRAD = torch.autograd.grad
_DETACH = (torch.detach_, torch.Tensor.detach_)


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
