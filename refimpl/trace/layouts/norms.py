"""Strides of what batch, group and layer norms give on a CPU: channels last where the argument is, else contiguous; the others of
their results are of one dimension, or contiguous.

Counterpart: torch/_decomp/decompositions.py native_batch_norm, native_group_norm, native_layer_norm
Differs: follows the kernels; the fake kernels keep the argument's layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.layouts.elementwise import contiguous_strides
from refimpl.trace.layouts.rolled import channels_last_strides, is_like_channels_last
from refimpl.trace.size_checks import is_known

aten = torch.ops.aten
_LAYERS = frozenset([aten.native_layer_norm.default])
_GROUPS = frozenset([aten.native_group_norm.default])
_BATCHES = frozenset(
    [
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_no_training.default,
        aten._native_batch_norm_legit_functional.default,
        aten._batch_norm_with_update.default,
        aten._batch_norm_with_update_functional.default,
        aten._batch_norm_no_update.default,
    ]
)
NORMS = _LAYERS | _GROUPS | _BATCHES


def normalised_strides(func: Any, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Strides of the first result of one of `NORMS`; None on other devices, without elements, and for sizes nobody knows."""
    x = args[0]
    shape = x.shape
    if x.device.type != "cpu" or not all(map(is_known, (*shape, *x.stride()))) or 0 in shape:
        return None
    if func in _LAYERS or (func in _BATCHES and x.is_contiguous()):
        return contiguous_strides(shape)
    is_last = is_like_channels_last(shape, x.stride()) or (func in _BATCHES and _is_dense_channels_last(x))
    return channels_last_strides(shape) if is_last else contiguous_strides(shape)


def _is_dense_channels_last(x: Any) -> bool:
    """Whatever the strides along sizes of 1 are."""
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return memory_format is not None and x.is_contiguous(memory_format=memory_format)
