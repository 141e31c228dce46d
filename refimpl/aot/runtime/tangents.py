"""Incoming gradients brought into the layout that the backward graph was traced with.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchAutograd.process_runtime_tangent
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from refimpl.aot.analysis.records import TangentInfo


def coerce_tangent(info: TangentInfo) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that gives the tangent itself if it already lies as expected, else a copy that does."""
    geometry = info.geometry
    if geometry is None:
        return _unchanged
    order = _order(geometry.stride)
    expected = geometry.stride if all(type(n) is int for n in (*geometry.size, *geometry.stride)) else None
    size = geometry.size
    back = [order.index(d) for d in range(len(order))]
    is_contiguous = order == list(range(len(order)))

    def coerce(tangent: torch.Tensor) -> torch.Tensor:
        if expected is not None and (tangent.stride() == expected or tuple(tangent.shape) != size):
            return tangent
        if is_contiguous:
            return tangent.contiguous()
        return tangent.permute(order).contiguous().permute(back)

    return coerce


def zeros_like_later(output: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that gives zeros in the place of a gradient that does not arrive, without keeping the output alive."""
    shape, dtype, device = output.shape, output.dtype, output.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)


def _unchanged(tangent: torch.Tensor) -> torch.Tensor:
    return tangent


def _order(stride: tuple[object, ...]) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    hints = [s if type(s) is int else s.node.hint for s in stride]  # type: ignore[attr-defined]
    # Only a run knows what has no hint: taken as the largest, in order.
    return sorted(range(len(hints)), key=lambda d: (hints[d] is not None, -(hints[d] or 0), d))
