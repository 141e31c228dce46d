"""The strides that a result is stored with: those of its fake, but for elements that share memory, which are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.codegen.lowering.state import are_overlapping
from refimpl.codegen.tensors import Stored


def repeated_dims(fake: torch.Tensor) -> list[int]:
    """Dimensions of a tensor whose elements along them are one place in memory."""
    return [
        dim
        for dim, (size, step) in enumerate(zip(fake.shape, fake.stride(), strict=True))
        if isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
    ]


def storable_strides(fake: torch.Tensor, value: Any = None) -> Any:
    """The strides that a fake has; None, for a tensor without gaps, where its elements would share memory. A tensor that is in
    memory with such strides stays there."""
    return fake.stride() if isinstance(value, Stored) else apart(fake.shape, fake.stride())


def shares_places(fake: torch.Tensor) -> bool:
    """Whether elements lie in one place that are no repetition along a dimension, as windows of a tensor do."""
    repeated = repeated_dims(fake)
    return apart([1 if dim in repeated else size for dim, size in enumerate(fake.shape)], fake.stride()) is None


def apart(shape: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The strides, or None where they put elements into one place."""
    if any(not isinstance(number, int) for number in (*shape, *strides)):
        return strides if 0 not in strides else None
    return None if are_overlapping(shape, strides) else strides
