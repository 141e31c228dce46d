"""Constant propagation: tracks small tensors whose values do not depend on the inputs, so that the program may read them.

Example: `torch.tensor(3).item()`.

Counterpart: the constant propagation in torch/fx/experimental/proxy_tensor.py proxy_call
Differs: a constant that is overwritten with an unknown value is forgotten, and all its views with it; upstream goes on to return
the old value for `.item()` on the views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload, registered_effect, storage_key, without_fake_mode
from refimpl.trace.refusals.operand_numbers import numbers_fit
from refimpl.trace.tracker import Tracked

NUMEL_LIMIT = 1  # most elements of a constant, since each op on constants is computed twice


class ConstantsState:
    """Decides which results are constants. Mutable: remembers which constants were overwritten."""

    def __init__(self) -> None:
        self._stale: dict[int, torch.Tensor] = {}  # overwritten storages, each with a tensor that keeps it alive

    def value_of(self, tracked: Tracked | None) -> torch.Tensor | None:
        """The tracked tensor's constant value; None if it has none."""
        if tracked is None or tracked.constant is None or storage_key(tracked.constant) in self._stale:
            return None
        return tracked.constant

    def forget(self, tracked: Tracked | None) -> None:
        """The tensor was overwritten with an unknown value: it and its views are no longer constants."""
        if tracked is not None and tracked.constant is not None:
            self._stale[storage_key(tracked.constant)] = tracked.constant

    def of_literal(self, literal: torch.Tensor) -> torch.Tensor | None:
        """The constant of a literal, `torch.tensor(3)`."""
        with without_fake_mode():
            return literal.clone() if literal.numel() <= NUMEL_LIMIT else None

    def of_number(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The constant of an `aten.scalar_tensor` call, which composite kernels make for literals, or of an `aten.full` call,
        which decompositions make."""
        *shape, number = args
        sizes = shape[0] if shape else []
        device = kwargs.get("device")
        if type(number) not in (bool, int, float, complex) or (
            device is not None and torch.device(device).type != "cpu"
        ):
            return None
        if not all(type(size) is int for size in sizes) or math.prod(sizes) > NUMEL_LIMIT:
            return None
        if not numbers_fit(func, args, kwargs):
            return None  # it raises when the program runs
        with without_fake_mode():
            return func(*args, **kwargs)

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> Any:
        """Run an op on constants on real tensors; None if the result is too large, or the op is random or has side effects."""
        if isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags:
            return None
        if registered_effect(func) is not None:
            return None
        tensors = [
            t for t in (result if isinstance(result, (list, tuple)) else [result]) if isinstance(t, torch.Tensor)
        ]
        if not tensors or any(t.numel() > NUMEL_LIMIT for t in tensors):
            return None
        with without_fake_mode():
            return func(*args, **kwargs)
