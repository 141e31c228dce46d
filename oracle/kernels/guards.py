"""Guarded memory: buffers between guard zones, and uninitialised memory filled with a pattern.

All tensors of a launcher, its arguments and those it allocates, lie in the middle of larger ones. If a zone has changed, the
kernel wrote past an end of the tensor. A new allocation is filled with a pattern; an element that still has it was never written.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.dtypes import ARITHMETIC_INTEGERS

ZONE_BYTES = 4096  # on either side; a multiple of every alignment that kernels are compiled for

# An element with the first pattern in one run and the second in the other was not written, whatever numbers these are.
PATTERNS: tuple[dict[torch.dtype, Any], ...] = tuple(
    {
        torch.bool: is_set,
        **{dtype: int.from_bytes(min(dtype.itemsize, 4) * [byte], "big") for dtype in ARITHMETIC_INTEGERS},
    }
    for is_set, byte in ((True, 0x5A), (False, 0x3C))
)
_FLOAT_PATTERNS = (float("nan"), -7936.0)  # the second is a number of every float dtype

# How the names of factories begin, after `new_`.
_UNFILLED = "empty"
_FILLED = ("zeros", "ones", "full")


def pattern_of(dtype: torch.dtype, which: int) -> Any:
    return _FLOAT_PATTERNS[which] if dtype.is_floating_point else PATTERNS[which].get(dtype, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One guarded tensor: `whole` holds zone, elements, zone. `names` are what a message calls it."""

    name: str
    tensor: Tensor
    whole: Tensor  # 1-D
    before: int  # elements of the zone in front
    extent: int

    def first_change(self, which: int) -> int | None:
        """Position of the first zone element that lost its pattern, counted from the tensor's first element."""
        is_kept = _has_pattern(self.whole, which)
        is_kept[self.before : self.before + self.extent] = True
        changed = (~is_kept).nonzero()
        if not changed.numel():
            return None
        places = changed.squeeze(-1) - self.before
        after = places[places >= self.extent]  # writing past the end is more common than before the start
        return int(after[0]) if after.numel() else int(places[-1])


def _has_pattern(tensor: Tensor, which: int) -> Tensor:
    pattern = pattern_of(tensor.dtype, which)
    return tensor.isnan() if pattern != pattern else tensor == pattern


@dataclass(slots=True, kw_only=True)
class GuardState:
    """Everything one run has in guarded memory."""

    which: int  # pattern
    zones: list[Zone] = field(default_factory=list)

    def place(
        self, name: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A tensor of this geometry in new memory, all of it pattern."""
        extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        zone = ZONE_BYTES // dtype.itemsize
        count = zone + math.ceil(extent / 16) * 16 + zone
        whole = torch.full((count,), pattern_of(dtype, self.which), dtype=dtype, device=device)
        tensor = whole.as_strided(shape, stride, zone)
        self.zones.append(Zone(name=name, tensor=tensor, whole=whole, before=zone, extent=extent))
        return tensor

    def place_copy(self, name: str, tensor: Tensor, device: torch.device | None = None) -> Tensor:
        """A copy with the same strides. Gaps between its elements hold the guard pattern too."""
        result = self.place(name, tuple(tensor.shape), tensor.stride(), tensor.dtype, device or tensor.device)
        return result.copy_(tensor)

    def zone_of(self, tensor: Tensor) -> Zone | None:
        pointer = tensor.untyped_storage().data_ptr()
        return next((zone for zone in self.zones if zone.whole.untyped_storage().data_ptr() == pointer), None)


class _Guarding(TorchDispatchMode):
    """Puts what is allocated into guarded memory."""

    def __init__(self, state: GuardState) -> None:
        super().__init__()
        self.state = state

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would wrap the handler in a function that imports Dynamo, which takes as long as importing torch."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle = self._handle_apart_from_dynamo if "torch._dynamo" in sys.modules else self._handle
        return handle(func, args, kwargs or {})

    @torch._disable_dynamo
    def _handle_apart_from_dynamo(self, func: Any, args: Any, kwargs: Any) -> Any:
        """For a launcher that calls a compiled function: Dynamo would compile the handler with it."""
        return self._handle(func, args, kwargs)

    def _handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        kind = name.removeprefix("new_")
        if not kind.startswith((_UNFILLED, *_FILLED)):
            return result
        if not isinstance(result, Tensor) or result.layout is not torch.strided or not _can_guard(result.dtype):
            return result
        number = sum(zone.name.startswith("allocation") for zone in self.state.zones) + 1
        label = f"allocation {number} ({name}{list(result.shape)})"
        if kind.startswith(_FILLED):
            return self.state.place_copy(label, result)
        return self.state.place(label, tuple(result.shape), result.stride(), result.dtype, result.device)


def _can_guard(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point and dtype.itemsize > 1) or dtype in PATTERNS[0]


@contextmanager
def guarding(state: GuardState) -> Iterator[None]:
    """While open, torch.empty, torch.zeros and similar functions allocate in `state`."""
    with _Guarding(state):
        yield


def never_written(first: Tensor, second: Tensor) -> Tensor:
    """The elements of an output that neither of two runs wrote. The runs fill memory with a first and a second pattern."""
    return _has_pattern(first, 0) & _has_pattern(second, 1)
