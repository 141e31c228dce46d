"""ZeroTensors: zeros without memory, which autograd makes for constant zero gradients (sgn). Their product with inf or NaN is 0.

Counterpart: aten/src/ATen/ZeroTensorFallback.cpp, mul_zerotensor and div_zerotensor of aten/src/ATen/native/BinaryOps.cpp
Differs: a trace records ordinary zeros and remembers which they are, because fake tensors lose the ZeroTensor dispatch key or the
device. Products and quotients of these become zeros as well.
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
    """The ZeroTensor tangent of a Python number in forward-mode AD: products with it are 0; elsewhere it is the number 0."""

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
}  # keyed by the dtypes of tensors that are wrapped numbers
_KINDS = tuple(map(type, _NUMBERS.values()))


def with_plain_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with ordinary numbers in place of ZeroTensor tangents."""
    if not any(isinstance(arg, _KINDS) for arg in args):
        return args
    return tuple(arg.plain if isinstance(arg, _KINDS) else arg for arg in args)


def as_tangent_of_number(zeros: torch.Tensor) -> torch.Tensor:
    """The zeros, with the number set that forward-mode AD reads from a 0-dim tensor, since a fake tensor has no data."""
    number = _NUMBERS.get(zeros.dtype)
    if number is not None and not zeros.ndim:
        set_wrapped_number(zeros, number)
    return zeros


class ZeroTensorsState:
    """The ZeroTensors of one trace, and views and products of them, each until it is mutated."""

    def __init__(self) -> None:
        self._versions = WeakTensorKeyDictionary()

    def add(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions[tensor] = tensor._version

    def make_it_zero(self, func: Any, args: Any) -> bool:
        """Whether the call is a product or quotient with a ZeroTensor, which is zero even if the other operand is inf or NaN."""
        if func not in (*_PRODUCTS, *_QUOTIENTS):
            return False
        zeros = [self._holds(arg) for arg in args[:2]]
        return any(zeros) if func in _PRODUCTS else zeros == [True, False]

    def are_viewed(self, func: Any, args: Any) -> bool:
        """Whether the result is a view of a ZeroTensor."""
        return bool(self._versions) and bool(args) and getattr(func, "is_view", False) and self._holds(args[0])

    def _holds(self, value: Any) -> bool:
        if isinstance(value, _KINDS):
            return True
        if not self._versions or not isinstance(value, torch.Tensor) or value.is_inference():
            return False
        return self._versions.get(value) == value._version


def zeros_of_product(left: Any, right: Any) -> torch.Tensor:
    """Ordinary zeros of the shape and dtype of a product or quotient."""
    tensors = [operand for operand in (left, right) if isinstance(operand, torch.Tensor)]
    shape = list(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    device = tensors[0].device if tensors else torch.device("cpu")
    return aten.zeros.default(shape, dtype=torch.result_type(left, right), device=device)
