"""Type promotion of elementwise ops, and kinds of dtypes.

Note [Dtypes of elementwise ops]
Operands are promoted in groups: tensors with dimensions, then 0-dim tensors, then Python numbers. A later group only counts if
its dtype is of a higher kind (bool < integer < float < complex) than those of the earlier ones.

Counterpart: torch/_prims_common/__init__.py elementwise_dtypes
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Iterable
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, OpOverload

BOOL, INT, FLOAT, COMPLEX = "bool", "int", "float", "complex"

_INTEGRAL_NUMBERS = (int, torch.SymInt)
_NUMBERS = (bool, int, float, complex, *SYMBOLIC_TYPES)


def kind_of(dtype: torch.dtype) -> str:
    """One of BOOL, INT, FLOAT, COMPLEX."""
    if dtype is torch.bool:
        return BOOL
    if dtype.is_complex:
        return COMPLEX
    return FLOAT if dtype.is_floating_point else INT


def is_common(dtype: torch.dtype) -> bool:
    """Whether most kernels implement the dtype: not complex32, float8, unsigned integers of 16 or more bits, or packed dtypes."""
    if dtype.is_floating_point:
        return dtype.itemsize > 1
    if dtype.is_complex:
        return dtype.to_real().itemsize > 2
    if dtype is torch.bool:
        return True
    try:
        limits = torch.iinfo(dtype)
    except TypeError:  # packed
        return False
    return (limits.min < 0 or limits.bits == 8) and not str(dtype).startswith("torch.q")


def rounded_number(number: float, dtype: torch.dtype) -> float:
    """The number rounded to a float dtype, computed without a tensor (a trace would record that)."""
    if dtype is torch.float64 or not math.isfinite(number):
        return float(number)
    single = ctypes.c_float(number).value
    if dtype is torch.float32 or not math.isfinite(single):
        return single
    if dtype is torch.bfloat16:
        bits = struct.unpack("<I", struct.pack("<f", single))[0]
        even = bits + 0x7FFF + (bits >> 16 & 1)
        return struct.unpack("<f", struct.pack("<I", even & 0xFFFF0000))[0]
    try:
        return struct.unpack("<e", struct.pack("<e", single))[0]
    except OverflowError:
        return math.copysign(math.inf, single)


def common_dtype(*operands: Any) -> torch.dtype:
    """The dtype that tensors and numbers are promoted to. Other operands, such as None, are ignored."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    return common_dtype_of(
        [x.dtype for x in tensors if x.ndim > 0],
        [x.dtype for x in tensors if x.ndim == 0],
        [x for x in operands if isinstance(x, _NUMBERS)],
    )


def common_dtype_of(
    with_dimensions: Iterable[torch.dtype], without: Iterable[torch.dtype], numbers: Iterable[Any]
) -> torch.dtype:
    """Like `common_dtype`, but takes the dtypes of tensors with dimensions and of 0-dim tensors, and numbers."""
    tensors = _combine(_highest(with_dimensions), _highest(without))
    return _combine(tensors, _highest(map(_dtype_of_number, numbers))) or torch.get_default_dtype()


def _dtype_of_number(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, _INTEGRAL_NUMBERS):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(number, complex) else default


def _highest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    return functools.reduce(lambda a, b: b if a is None else torch.promote_types(a, b), dtypes, None)


def _combine(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """The dtype of a group of operands promoted with a later group."""
    if first is None or second is None:
        return first or second
    order = (BOOL, INT, FLOAT, COMPLEX)
    if order.index(kind_of(second)) <= order.index(kind_of(first)):
        return first
    if kind_of(first) == FLOAT:  # and the second is complex: keep the precision of the first
        return torch.promote_types(first, torch.complex32)
    return second


# 0-dim float8 operands next to complex tensors (`complex64_tensor + float8_scalar`): eager computes such calls, and fake kernels
# raise, because float8 dtypes have no corresponding complex dtype.

_UNTAGGED = frozenset([torch.ops.aten.rsub.Tensor, torch.ops.aten.rsub.Tensor_out])  # elementwise, without the tag


def without_float8_scalars(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an elementwise op, with float32 in place of 0-dim float8 next to a complex tensor with dimensions.

    The complex tensor alone decides the dtype of the result.
    """
    if not any(map(_is_small_scalar, args)) or not any(map(_is_complex, args)) or not _is_elementwise(func):
        return args
    empty_like = torch.ops.aten.empty_like.default
    return tuple(empty_like(arg, dtype=torch.float32) if _is_small_scalar(arg) else arg for arg in args)


def _is_small_scalar(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.ndim == 0 and arg.is_floating_point() and arg.itemsize == 1


def _is_complex(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return len(arg) > 0 and all(map(_is_complex, arg))
    return isinstance(arg, torch.Tensor) and arg.ndim > 0 and arg.is_complex()


@functools.cache
def _is_elementwise(func: Any) -> bool:
    """Whether any overload of the operator has the tag `pointwise`. Overloads with `out=` and `_foreach_` ops lack it."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    name = func.overloadpacket.__name__.removeprefix("_foreach_")
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return func in _UNTAGGED or any(torch.Tag.pointwise in overload.tags for overload in overloads)
