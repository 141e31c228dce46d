"""Reads autograd's graph: the nodes behind a tensor, whether they hold saved tensors, and whether one is a custom Function.

Counterpart: none
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from refimpl._torch import function_of

# Types of autograd nodes whose saved tensors cannot be read: writes to views, and C++ functions.
_UNTOLD = ("CopySlices", "CppFunction")
_WITHOUT_FORMULA = "torch::autograd::WarnNotImplemented"


def is_new_leaf(tensor: torch.Tensor) -> bool:
    """Whether the program made it a leaf by requires_grad_."""
    return tensor.requires_grad and history_of(tensor, forbidden=tensor) is None


def is_hooked(value: Any) -> bool:
    """Whether it is a tensor with hooks on its gradient."""
    if not isinstance(value, torch.Tensor):
        return False
    return bool(value._backward_hooks) or bool(getattr(value, "_post_accumulate_grad_hooks", None))


def has_gradient_of_base(tensor: torch.Tensor) -> bool:
    """Whether it is a view, made in no_grad mode, of a base that requires a gradient. A remade view requires one as well."""
    base = tensor._base
    return base is not None and base.requires_grad and history_of(tensor, forbidden=tensor) is None


def history_of(tensor: torch.Tensor, forbidden: Any = None) -> Any:
    """The `grad_fn` of a tensor, or `forbidden` if autograd raises when it is read: for a view that was made in no_grad mode and
    whose base was then written to in grad mode. A program may return such a view without reading `grad_fn`."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return forbidden


def has_custom_function(grad_fn: Any, count: int) -> bool:
    """Whether a custom autograd.Function is among the last `count` nodes of a history."""
    for _ in range(count):
        if grad_fn is None:
            return False
        if isinstance(grad_fn, torch.autograd.function.BackwardCFunction):
            return not getattr(function_of(grad_fn), "begins_history", False)
        grad_fn = grad_fn.next_functions[0][0] if grad_fn.next_functions else None
    return False


def steps_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """All autograd nodes behind the tensors."""
    waiting = [history_of(tensor) for tensor in tensors]
    found: dict[Any, None] = {}
    while waiting:
        step = waiting.pop()
        if step is not None and step not in found:
            found[step] = None
            waiting += [following for following, _ in step.next_functions]
    return list(found)


def lacks_formula(results: Sequence[torch.Tensor]) -> bool:
    """Whether an operator that computed the results has no derivative formula.

    Eager mode then differentiates the operators that its kernel calls, and warns if there are none. Fake tensors do not run it.
    """
    return any(step.name() == _WITHOUT_FORMULA for step in steps_behind(results))


def calls_backward(results: Sequence[torch.Tensor]) -> bool:
    """Whether the backward of a result calls `backward()` itself, as torch.utils.checkpoint does with use_reentrant=True."""
    return any(function_of(step) is CheckpointFunction for step in steps_behind(results))


def freed_together(results: Sequence[torch.Tensor]) -> tuple[frozenset[int], ...]:
    """For every result, those whose backward cannot run after its own: an autograd node behind both frees its saved tensors.

    A result does not include itself if no node behind it has saved tensors."""
    behind: dict[Any, int] = {}  # for each autograd node, bits of the results it is behind
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
    """Whether the node has saved tensors, or may have."""
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
    """The attributes of a type of autograd node that hold saved tensors, before hooks unpack them."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _first_steps_first(last: Iterable[Any]) -> list[Any]:
    """The given autograd nodes and all behind them, each after all that are behind it."""
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
