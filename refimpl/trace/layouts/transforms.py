"""Strides of Fourier transforms of real numbers on a CPU: the kernel transforms a copy whose transformed dimensions come last.

Counterpart: torch/_meta_registrations.py meta_fft_r2c
Differs: knows the kernel's layout in every version; the fake kernel of torch 2.11 gives a contiguous result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def transformed_strides(func: Any, shape: Sequence[int], args: Sequence[Any]) -> tuple[int, ...] | None:
    """Strides of what `_fft_r2c` gives; None for other operators, symbolic sizes, no elements, and kernels other than MKL's."""
    if func is not aten._fft_r2c.default or len(args) < 2 or 0 in shape:
        return None
    x, dims = args[:2]
    if x.device.type != "cpu" or not torch.backends.mkl.is_available():
        return None
    if any(type(number) is not int for number in (*shape, *x.stride(), *dims)):
        return None
    steps = x.stride()
    order = [*_by_stride(_batch(len(shape), dims), steps), *_by_stride(dims[:-1], steps), dims[-1]]
    found, step = [0] * len(shape), 1
    for dim in reversed(order):
        found[dim] = step
        step *= shape[dim]
    return tuple(found)


def _by_stride(dims: Sequence[int], steps: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda dim: -steps[dim])


def _batch(count: int, dims: Sequence[int]) -> list[int]:
    """The dimensions that are not transformed: a gap is filled with the last of them, as std::partition does."""
    left, found = [dim for dim in range(count) if dim not in dims], []
    for dim in range(count):
        if not left:
            break
        found.append(left.pop(0) if left[0] == dim else left.pop())
    return found
