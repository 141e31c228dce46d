"""Strides of `constant_pad_nd` where it adds nothing on any side: what is left is cloned with its strides. The fake kernel says
so only where something is taken away on every side, and otherwise that the result is row-major, or has the channels last.

Counterpart: torch/_refs/__init__.py constant_pad_nd
Differs: of symbolic sizes it is asked whether they add anything, where that decides on the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.layouts.elementwise import kept_strides
from refimpl.trace.size_checks import is_known

aten = torch.ops.aten


def padded_strides(func: Any, shape: Sequence[int], args: Sequence[Any]) -> tuple[int, ...] | None:
    """Strides of the result, if it is padded by nothing; None for other operators, and for sizes that only a run knows."""
    if func is not aten.constant_pad_nd.default:
        return None
    x, pad = args[:2]
    if not all(map(is_known, (*x.shape, *x.stride(), *pad))) or x.is_contiguous() or any(size > 0 for size in pad):
        return None
    return kept_strides(shape, x.stride())
