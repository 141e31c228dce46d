"""Zeros that have no memory: autograd makes them where a gradient is zero whatever arrives (sgn), and they stay zero in products.

Counterpart: aten/src/ATen/ZeroTensorFallback.cpp, mul_zerotensor and div_zerotensor of aten/src/ATen/native/BinaryOps.cpp
Differs: in a trace they are zeros like others, whose products are known: fake tensors do not keep the dispatch key, or are of
another device with it.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import WeakTensorKeyDictionary, set_wrapped_number

aten = torch.ops.aten
MAKES_ZEROS = aten._efficientzerotensor.default
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)


class _ZeroFloat(float):
    """What autograd gives operators for the tangent of a number: stays zero in products, and is an ordinary number elsewhere."""

    plain = 0.0


class _ZeroInt(int):
    plain: int = 0


class _ZeroBool(int):
    plain = False


class _ZeroComplex(complex):
    plain = 0j


_NUMBERS = {
    torch.float64: _ZeroFloat(),
    torch.int64: _ZeroInt(),
    torch.bool: _ZeroBool(),
    torch.complex128: _ZeroComplex(),
}  # the dtypes of tensors that stand for numbers
_KINDS = tuple(map(type, _NUMBERS.values()))


def with_plain_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, with such numbers as the program could have written them."""
    if not any(isinstance(arg, _KINDS) for arg in args):
        return args
    return tuple(arg.plain if isinstance(arg, _KINDS) else arg for arg in args)


def as_tangent_of_number(zeros: torch.Tensor) -> torch.Tensor:
    """The same, ready to be taken for a number by forward-mode AD: a fake tensor has no memory that the number is read of."""
    number = _NUMBERS.get(zeros.dtype)
    if number is not None and not zeros.ndim:
        set_wrapped_number(zeros, number)
    return zeros


class ZeroTensorsState:
    """The zeros of one trace: what autograd made as such, their views and products; until something is written there."""

    def __init__(self) -> None:
        self._versions = WeakTensorKeyDictionary()

    def add(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions[tensor] = tensor._version

    def make_it_zero(self, func: Any, args: Any) -> bool:
        """Whether the result is zero because an operand is, even if another one is infinite or NaN."""
        if func not in (*_PRODUCTS, *_QUOTIENTS):
            return False
        zeros = [self._holds(arg) for arg in args[:2]]
        return any(zeros) if func in _PRODUCTS else zeros == [True, False]

    def are_viewed(self, func: Any, args: Any) -> bool:
        """Whether the result is a view of such zeros."""
        return bool(self._versions) and bool(args) and getattr(func, "is_view", False) and self._holds(args[0])

    def _holds(self, value: Any) -> bool:
        if isinstance(value, _KINDS):
            return True
        if not self._versions or not isinstance(value, torch.Tensor) or value.is_inference():
            return False
        return self._versions.get(value) == value._version


def zeros_of_product(left: Any, right: Any) -> torch.Tensor:
    """Zeros of the shape and dtype of a product or quotient, in memory."""
    tensors = [operand for operand in (left, right) if isinstance(operand, torch.Tensor)]
    shape = list(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    device = tensors[0].device if tensors else torch.device("cpu")
    return aten.zeros.default(shape, dtype=torch.result_type(left, right), device=device)
