"""Refuses two calls that a graph cannot follow: `detach_` of a tensor with views, and `retain_grad` of a result.

After `detach_` of a base its views keep their histories; a view that is made again from the base has none. A result that retains
its gradient adds up all its uses, and the graph does not see those behind the call.

Counterpart: none; torch's aot_autograd gives views of a result the history of that result, and results that retain no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import function_of
from refimpl.aot.analysis.history import history_of
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.tracker import TrackerState

_DETACHING = (torch.detach_, torch.Tensor.detach_)


class DetachedBasesMode(TorchFunctionMode):
    """Raises UnsupportedByRefimpl. In eager mode a view's history ends in nothing if the base was written to after the view was
    made, and the view's history not asked for since."""

    def __init__(self, tracker: TrackerState) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DETACHING and args and _is_made_in_program(args[0]):
            if any(tensor._base is args[0] and tensor.requires_grad for tensor, _ in self._tracker.items()):
                raise UnsupportedByRefimpl(
                    seen="detach_() of a tensor with a history, and with views that have it too",
                    supported="detach_() of tensors without views",
                    do="use detach(), or compile what comes before apart",
                )
        return func(*args, **(kwargs or {}))


def _is_made_in_program(tensor: torch.Tensor) -> bool:
    """Or written to: its history goes on behind what an argument's begins with."""
    step: Any = history_of(tensor)
    return step is not None and not getattr(function_of(step), "begins_history", False)


def refuse_retained(values: Iterable[Any]) -> None:
    """Raises UnsupportedByRefimpl where a result or argument with a history retains its gradient. Leaves have theirs anyway."""
    if any(isinstance(value, torch.Tensor) and value.retains_grad for value in values):
        raise UnsupportedByRefimpl(
            seen="retain_grad() of a tensor with a history, in the program",
            supported="retain_grad() of leaves, and of results behind the call",
            do="capture the program, which breaks the graph there, or return the tensor and compile what comes behind apart",
        )
