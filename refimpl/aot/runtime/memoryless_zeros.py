"""Zeros without memory (`torch._efficientzerotensor`, gradients of `sgn`, `.grad` of these) that meet a compiled program.

Counterpart: aten/src/ATen/ZeroTensorFallback.cpp; torch's graphs give kernels their null pointers

In eager mode they stay zero in products, also with infinities, until an operator that knows nothing of them gets zeros in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from refimpl.aot.analysis.subclasses import dense_parts
from refimpl.errors import UnsupportedByRefimpl


def is_memoryless(value: Any) -> bool:
    """Whether it is a tensor of zeros without memory."""
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def in_memory(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """What arrives at a backward, with zeros that kernels can read."""
    return [None if g is None else g.clone() if g._is_zerotensor() else g for g in gradients]


def refuse_nan(gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, computed of such zeros. Raises UnsupportedByRefimpl where one is NaN: that of eager mode may be 0."""
    for gradient in gradients:
        parts = [part for part in dense_parts(gradient) if isinstance(part, torch.Tensor)]
        if any(bool(part.isnan().any()) for part in parts if part.layout is torch.strided):
            raise UnsupportedByRefimpl(
                seen="zeros without memory that arrive at the backward of a compiled graph, where a gradient of them is NaN",
                supported="such zeros where what they are multiplied with is finite",
                do="give a gradient that has memory (`gradient.clone()`), or run the function without compiling it",
            )
    return gradients
