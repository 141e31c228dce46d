"""Zeros that have no memory: autograd makes them where a gradient is zero whatever arrives (sgn), and they stay zero in products.

Counterpart: aten/src/ATen/ZeroTensorFallback.cpp, mul_zerotensor and div_zerotensor of aten/src/ATen/native/BinaryOps.cpp
Differs: in a trace they are zeros like others, whose products are known: fake tensors do not keep the dispatch key, or are of
another device with it.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import WeakTensorKeyDictionary

aten = torch.ops.aten
MAKES_ZEROS = aten._efficientzerotensor.default
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)


class ZeroTensorsState:
    """The zeros of one trace: what autograd made as such, their views and products; until something is written there."""

    def __init__(self) -> None:
        self._versions = WeakTensorKeyDictionary()

    def add(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions[tensor] = tensor._version

    def make_it_zero(self, func: Any, args: Any) -> bool:
        """Whether the result is zero because an operand is, even if another one is infinite or NaN."""
        if not self._versions or func not in (*_PRODUCTS, *_QUOTIENTS):
            return False
        zeros = [self._holds(arg) for arg in args[:2]]
        return any(zeros) if func in _PRODUCTS else zeros == [True, False]

    def are_viewed(self, func: Any, args: Any) -> bool:
        """Whether the result is a view of such zeros."""
        return bool(self._versions) and bool(args) and getattr(func, "is_view", False) and self._holds(args[0])

    def _holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and self._versions.get(value, -1) == value._version


def zeros_of_product(left: Any, right: Any) -> torch.Tensor:
    """Zeros of the shape and dtype of a product or quotient, in memory."""
    tensors = [operand for operand in (left, right) if isinstance(operand, torch.Tensor)]
    shape = list(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    return aten.zeros.default(shape, dtype=torch.result_type(left, right), device=tensors[0].device)
