"""Strides of `roll` on a CPU, whose kernel joins two parts for each dimension: channels last where both are, else contiguous;
and of `channel_shuffle`, `max_unpool2d`, resampling, and reflections and their gradients: channels last where the argument is.

Counterpart: torch/_refs/__init__.py roll; torch/_decomp/decompositions.py native_channel_shuffle, max_unpool2d, _reflection_pad
Differs: follows the kernels; the fake kernels give contiguous results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.layouts.elementwise import contiguous_strides
from refimpl.trace.size_checks import is_known

aten = torch.ops.aten
_CHANNELS_LAST_OR_NOT = frozenset(
    [aten.channel_shuffle.default, aten.native_channel_shuffle.default, aten.max_unpool2d.default]
)
# The same: of volumes, too, where a volume without a batch has four dimensions; and gradients, by the argument whose they are.
_PADDING = frozenset(
    [
        aten.reflection_pad1d.default,
        aten.reflection_pad2d.default,
        aten.reflection_pad3d.default,
        aten.replication_pad1d.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
    ]
)
PADDING_BACKWARD = frozenset(
    [
        aten.reflection_pad1d_backward.default,
        aten.reflection_pad2d_backward.default,
        aten.reflection_pad3d_backward.default,
        aten.replication_pad1d_backward.default,
        aten.replication_pad2d_backward.default,
        aten.replication_pad3d_backward.default,
    ]
)
# The same; their fake kernels err along sizes of 1 only, which symbolic ones are not.
_RESAMPLING = frozenset(
    [
        aten.upsample_nearest1d.default,
        aten.upsample_nearest2d.default,
        aten.upsample_nearest3d.default,
        aten._upsample_nearest_exact1d.default,
        aten._upsample_nearest_exact2d.default,
        aten._upsample_nearest_exact3d.default,
        aten.upsample_linear1d.default,
        aten.upsample_bilinear2d.default,
        aten.upsample_trilinear3d.default,
        aten.upsample_bicubic2d.default,
    ]
)
_BY_ARGUMENT = _CHANNELS_LAST_OR_NOT | _RESAMPLING | _PADDING | PADDING_BACKWARD


def rolled_strides(func: Any, shape: Sequence[int], args: Sequence[Any]) -> tuple[int, ...] | None:
    """Strides of what `roll` gives; None for other operators and devices, symbolic numbers, and no elements."""
    if func is not aten.roll.default or 0 in shape:
        return None
    x, shifts, *rest = args
    dims = rest[0] if rest else ()
    if x.device.type != "cpu" or any(type(number) is not int for number in (*shape, *x.stride(), *shifts, *dims)):
        return None
    strides = x.stride()
    for shift, dim in zip(shifts, dims, strict=False):  # of no dimensions the tensor is rolled as a row
        first = shift % shape[dim]
        parts = [(*shape[:dim], size, *shape[dim:][1:]) for size in (first, shape[dim] - first)]
        is_kept = all(is_like_channels_last(part, strides) for part in parts)
        strides = channels_last_strides(shape) if is_kept else contiguous_strides(shape)
    return strides if len(dims) else contiguous_strides(shape)


def shuffled_strides(func: Any, shape: Sequence[int], args: Sequence[Any]) -> tuple[int, ...] | None:
    """Strides of what `channel_shuffle`, `max_unpool2d`, resampling and reflections give; None for other operators and devices,
    sizes that only a run of the graph knows, symbolic ones of resampling, and no elements."""
    if func not in _BY_ARGUMENT:
        return None
    x = args[1] if func in PADDING_BACKWARD else args[0]
    if func in _RESAMPLING and any(type(number) is not int for number in (*shape, *x.stride())):
        return None
    if x.device.type != "cpu" or not all(map(is_known, (*shape, *x.stride()))) or 0 in shape:
        return None
    return channels_last_strides(shape) if is_like_channels_last(x.shape, x.stride()) else contiguous_strides(shape)


def is_like_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each dimension, from the channels outwards, steps over all of the one before. A size of 1 counts by its stride.

    Of four or five dimensions; else it is not.
    """
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least:
            return False
        if dim == 0 and least == strides[1]:  # of one channel and one position: as well contiguous
            return False
        least = strides[dim] * (shape[dim] if shape[dim] > 1 else 1)
    return True


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of new memory for four or five dimensions."""
    batch, *inner, channels = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return batch, channels, *inner
