"""Reads autograd's history of a tensor: the nodes behind it, what they keep, and whether one is a user's autograd.Function.

Counterpart: none
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from refimpl._torch import function_of

# Of autograd's steps that do not tell what they keep: writes to views, and what is no operator of its own.
_UNTOLD = ("CopySlices", "CppFunction")


def is_new_leaf(tensor: torch.Tensor) -> bool:
    """Whether the program asked for its gradient by requires_grad_."""
    return tensor.requires_grad and history_of(tensor, forbidden=tensor) is None


def has_gradient_of_base(tensor: torch.Tensor) -> bool:
    """Whether it is a view made without gradients of what requires one: it does too, as any such view that is made again."""
    base = tensor._base
    return base is not None and base.requires_grad and history_of(tensor, forbidden=tensor) is None


def history_of(tensor: torch.Tensor, forbidden: Any = None) -> Any:
    """The autograd node behind a tensor. `forbidden` for a view made without gradients of what was then written to with them:
    autograd raises when it is asked, which a program that returns such a view does not do."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return forbidden


def has_custom_function(grad_fn: Any, count: int) -> bool:
    """Whether a user's autograd.Function is among the last `count` steps of a tensor's history."""
    for _ in range(count):
        if grad_fn is None:
            return False
        if isinstance(grad_fn, torch.autograd.function.BackwardCFunction):
            return not getattr(function_of(grad_fn), "begins_history", False)
        grad_fn = grad_fn.next_functions[0][0] if grad_fn.next_functions else None
    return False


def steps_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Every step of autograd that a backward from these runs, once."""
    waiting = [history_of(tensor) for tensor in tensors]
    found: dict[Any, None] = {}
    while waiting:
        step = waiting.pop()
        if step is not None and step not in found:
            found[step] = None
            waiting += [following for following, _ in step.next_functions]
    return list(found)


def freed_together(results: Sequence[torch.Tensor]) -> tuple[frozenset[int], ...]:
    """By result, those whose backward cannot run once its own has run for good: a step behind both keeps values, which it lets go
    then. A result of steps that keep nothing is not among its own."""
    behind: dict[Any, int] = {}  # of each step, bits of the results
    for index, result in enumerate(results):
        step = history_of(result)
        behind[step] = behind.get(step, 0) | 1 << index
    for step in reversed(_first_steps_first(behind)):
        for following, _ in step.next_functions:
            behind[following] = behind.get(following, 0) | behind[step]
    found = [0] * len(results)
    kept: set[int] = set()
    for step, bits in behind.items():
        if step is not None and bits not in kept and _keeps_values(step):
            kept.add(bits)
            found = [together | bits if bits >> index & 1 else together for index, together in enumerate(found)]
    return tuple(frozenset(j for j in range(len(results)) if together >> j & 1) for together in found)


def _keeps_values(step: Any) -> bool:
    """Whether it has saved tensors for its backward, or may have."""
    if type(step).__name__ in _UNTOLD:
        return True
    try:
        saved = [getattr(step, name) for name in _names_of_saved(type(step))]
    except RuntimeError:  # they are freed
        return True
    flat = [one for value in saved for one in (value if isinstance(value, (tuple, list)) else [value])]
    return any(getattr(one, "data", one) is not None for one in flat)


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """What of such a step is as it was saved, before any hook unpacks it."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _first_steps_first(last: Iterable[Any]) -> list[Any]:
    """The steps behind these and these, every one after all that are behind it."""
    ordered: list[Any] = []
    seen: set[Any] = {None}
    waiting = [(step, False) for step in last]
    while waiting:
        step, is_done = waiting.pop()
        if is_done:
            ordered.append(step)
        elif step not in seen:
            seen.add(step)
            waiting.append((step, True))
            waiting += [(following, False) for following, _ in step.next_functions]
    return ordered
