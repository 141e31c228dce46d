"""Operators, comparisons, selection and conversion.

Counterpart: triton/language/semantic.py TritonSemantic
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refimpl.codegen.emulator.types import (
    SIGNED_OF_WIDTH,
    PointerType,
    Type,
    bf16,
    fp32,
    fp64,
    int1,
    int32,
    int64,
    uint64,
)
from refimpl.codegen.emulator.values import (
    Rejected,
    Unsupported,
    Value,
    align,
    as_tensor,
    cast_data,
    cast_value,
    method,
    operands,
    reduce_range,
    to_value,
)

PropagateNan = SimpleNamespace(NONE="none", ALL="all")


def _unsigned(function: Callable[..., Any], a: Any, b: Any) -> Tensor:
    """A numpy function on the bits of uint64."""
    x, y = (as_tensor(operand, uint64).numpy().view(np.uint64) for operand in (a, b))
    result = np.asarray(function(x, y))
    return torch.from_numpy(result.view(np.int64) if result.dtype == np.uint64 else result)


# ------------------------------------------------------------------------------------------------- + - * / // % and pointers


def _moved(pointer: Value, offset: Any, sign: int) -> Value:
    if isinstance(offset, int):
        return Value(pointer.data + sign * offset, pointer.dtype, pointer.buffer)
    if not isinstance(offset, Value) or isinstance(offset.dtype, PointerType) or offset.dtype.is_floating():
        raise Rejected(f"a {pointer.type} moved by {offset!r}; only integers move pointers")
    step = cast_data(offset.data, offset.dtype, int64)
    places, step = align((pointer.data, step)) if pointer.data.dim() != step.dim() else (pointer.data, step)
    return Value(places + step if sign > 0 else places - step, pointer.dtype, pointer.buffer)


def _is_pointer(x: Any) -> bool:
    return isinstance(x, Value) and x.buffer is not None


@method("__add__")
def add(a: Any, b: Any, sanitize_overflow: bool = True) -> Value:
    if _is_pointer(a):
        return _moved(a, b, 1)
    if _is_pointer(b):
        return _moved(b, a, 1)
    x, y, type_ = operands(a, b)
    return Value(x ^ y if type_ is int1 else reduce_range(x + y, type_), type_)


@method("__radd__")
def _radd(a: Any, b: Any) -> Value:
    return add(b, a)


@method("__sub__")
def sub(a: Any, b: Any, sanitize_overflow: bool = True) -> Value:
    if _is_pointer(a):
        return _moved(a, b, -1)
    x, y, type_ = operands(a, b)
    return Value(x ^ y if type_ is int1 else reduce_range(x - y, type_), type_)


@method("__rsub__")
def _rsub(a: Any, b: Any) -> Value:
    return sub(b, a)


@method("__mul__")
def mul(a: Any, b: Any, sanitize_overflow: bool = True) -> Value:
    """A product with -1.0 also changes the sign of NaN: the compiler makes a negation of it."""
    x, y, type_ = operands(a, b)
    if isinstance(y, float) and y == -1.0:
        return Value(_negated(x), type_)
    return Value(x & y if type_ is int1 else reduce_range(x * y, type_), type_)


@method("__rmul__")
def _rmul(a: Any, b: Any) -> Value:
    return mul(b, a)


@method("__truediv__")
def truediv(a: Any, b: Any) -> Value:
    x, y, type_ = operands(a, b, is_division=True)
    if type_.is_int():
        x, y, type_ = cast_data(as_tensor(x, type_), type_, fp32), cast_data(as_tensor(y, type_), type_, fp32), fp32
    return Value(as_tensor(x, type_) / y, type_)


@method("__rtruediv__")
def _rtruediv(a: Any, b: Any) -> Value:
    return truediv(b, a)


def _integer_division(x: Any, y: Any, type_: Type) -> tuple[Tensor, Tensor]:
    """Quotient rounded towards zero, and remainder with the dividend's sign. By zero: all bits set, and the dividend."""
    if type_ is uint64:
        with np.errstate(all="ignore"):
            safe = _unsigned(np.maximum, y, 1)
            is_zero = as_tensor(y, type_) == 0
            quotient, remainder = _unsigned(np.floor_divide, x, safe), _unsigned(np.remainder, x, safe)
        return torch.where(is_zero, -1, quotient), torch.where(is_zero, as_tensor(x, type_), remainder)
    if not isinstance(y, Tensor) and y > 0:
        x = as_tensor(x, type_)
        return torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)
    x, y = as_tensor(x, type_), as_tensor(y, type_)
    is_zero, is_minus_one = y == 0, (y == -1) if type_.signed else torch.zeros((), dtype=torch.bool)
    safe = torch.where(is_zero | is_minus_one, 1, y)  # the processor traps on both
    quotient, remainder = torch.div(x, safe, rounding_mode="trunc"), torch.fmod(x, safe)
    if bool(is_minus_one.any()):
        quotient, remainder = torch.where(is_minus_one, -x, quotient), torch.where(is_minus_one, 0, remainder)
    if bool(is_zero.any()):
        ones = reduce_range(torch.full((), -1, dtype=torch.int64), type_).to(quotient.dtype)
        quotient, remainder = torch.where(is_zero, ones, quotient), torch.where(is_zero, x, remainder)
    return quotient, remainder


@method("__floordiv__")
def floordiv(a: Any, b: Any) -> Value:
    x, y, type_ = operands(a, b, is_division=True)
    if type_.is_floating():
        raise Rejected(f"// of {type_}; only integers have it")
    return Value(_integer_division(x, y, type_)[0], type_)


@method("__rfloordiv__")
def _rfloordiv(a: Any, b: Any) -> Value:
    return floordiv(b, a)


@method("__mod__")
def mod(a: Any, b: Any) -> Value:
    x, y, type_ = operands(a, b, is_division=True)
    if type_.is_floating():
        return Value(torch.fmod(as_tensor(x, type_), as_tensor(y, type_)), type_)
    return Value(_integer_division(x, y, type_)[1], type_)


@method("__rmod__")
def _rmod(a: Any, b: Any) -> Value:
    return mod(b, a)


def _negated(data: Tensor) -> Tensor:
    """Negate floats. Not by torch's own operator: for bfloat16 it goes by way of float32 and loses the sign of NaN."""
    if data.dtype is torch.bfloat16:
        return (data.view(torch.int16) ^ -0x8000).view(torch.bfloat16)
    return -data


@method("__neg__")
def minus(a: Value) -> Value:
    if isinstance(a.dtype, PointerType) or a.dtype is int1:
        raise Rejected(f"- of {a.type}")
    if a.dtype.is_floating():
        return Value(_negated(a.data), a.dtype)
    return Value(reduce_range((-a.data if a.dtype.carrier is not torch.uint8 else 0 - a.data), a.dtype), a.dtype)


@method("__pos__")
def plus(a: Value) -> Value:
    return a


def cdiv(x: Any, div: Any) -> Any:
    if isinstance(x, Value) or isinstance(div, Value):
        return floordiv(add(x, sub(div, 1) if isinstance(div, Value) else div - 1), div)
    return (x + (div - 1)) // div


method("cdiv")(cdiv)


# ----------------------------------------------------------------------------------------------------------- bits and logic


def _bits(a: Any, b: Any, what: str) -> tuple[Any, Any, Type]:
    x, y, type_ = operands(a, b)
    if type_.is_floating():
        raise Rejected(f"{what} of {type_}; only integers have it")
    return x, y, type_


def _both_ways(name: str, apply: Callable[[Any, Any], Value]) -> Callable[[Any, Any], Value]:
    """Makes a function of two operands the Python operator of this name, with a value on either side."""

    def reverse(a: Any, b: Any) -> Value:
        return apply(b, a)

    setattr(Value, f"__{name}__", apply)
    setattr(Value, f"__r{name}__", reverse)
    return apply


def _bitwise(name: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Value]:
    def apply(a: Any, b: Any) -> Value:
        x, y, type_ = _bits(a, b, name)
        return Value(function(as_tensor(x, type_), y), type_)

    return _both_ways(name, apply)


and_ = _bitwise("and", operator.and_)
or_ = _bitwise("or", operator.or_)
xor_ = _bitwise("xor", operator.xor)


@method("__invert__")
def invert(a: Value) -> Value:
    if isinstance(a.dtype, PointerType) or a.dtype.is_floating():
        raise Rejected(f"~ of {a.type}")
    return Value(reduce_range(~a.data, a.dtype), a.dtype)


def _shift(name: str, *, is_left: bool) -> Callable[[Any, Any], Value]:
    def apply(a: Any, b: Any) -> Value:
        x, y, type_ = _bits(a, b, "<<" if is_left else ">>")
        x, y = as_tensor(x, type_), as_tensor(y, type_)
        if type_ is uint64:
            return Value(_unsigned(np.left_shift if is_left else np.right_shift, x, y), type_)
        return Value(reduce_range(x << y, type_) if is_left else x >> y, type_)

    return _both_ways(name, apply)


shl = _shift("lshift", is_left=True)
shr = _shift("rshift", is_left=False)


def _truth(x: Any) -> Value:
    value = to_value(x)
    return value if value.dtype is int1 else cast_value(value, int1)


@method("logical_and")
def logical_and(a: Any, b: Any) -> Value:
    return and_(_truth(a), _truth(b))


@method("logical_or")
def logical_or(a: Any, b: Any) -> Value:
    return or_(_truth(a), _truth(b))


def logical_not(a: Value) -> Value:
    return invert(_truth(a))


# -------------------------------------------------------------------------------------------------------------- comparisons


def _comparison(
    name: str, function: Callable[[Any, Any], Any], unsigned: Callable[..., Any]
) -> Callable[[Any, Any], Value]:
    def apply(a: Any, b: Any) -> Any:
        if _is_pointer(a) and _is_pointer(b):
            if a.buffer is not b.buffer:
                raise Unsupported("a comparison of pointers into two arguments")
            return Value(function(a.data, b.data), int1)
        if (a is None or b is None) and name in ("eq", "ne"):
            return name == "ne"
        x, y, type_ = operands(a, b)
        if type_ is uint64:
            return Value(_unsigned(unsigned, x, y), int1)
        return Value(function(as_tensor(x, type_), y), int1)

    setattr(Value, f"__{name}__", apply)
    return apply


equal = _comparison("eq", operator.eq, np.equal)
not_equal = _comparison("ne", operator.ne, np.not_equal)
less = _comparison("lt", operator.lt, np.less)
less_equal = _comparison("le", operator.le, np.less_equal)
greater = _comparison("gt", operator.gt, np.greater)
greater_equal = _comparison("ge", operator.ge, np.greater_equal)


# ---------------------------------------------------------------------------------------------------------------- selection


def where(condition: Any, x: Any, y: Any) -> Value:
    chooser = _truth(condition).data
    if _is_pointer(x) or _is_pointer(y):
        if not (_is_pointer(x) and _is_pointer(y)) or x.buffer is not y.buffer:
            raise Unsupported("where of pointers into two arguments")
        a, b, type_, buffer = x.data, y.data, x.dtype, x.buffer
    else:
        a, b, type_ = operands(x, y)
        a, b, buffer = as_tensor(a, type_), as_tensor(b, type_), None
    chooser, a, b = align((chooser, a, b))
    return Value(torch.where(chooser, a, b), type_, buffer)


def _extremum(a: Any, b: Any, propagate_nan: Any, *, is_maximum: bool) -> Value:
    x, y, type_ = operands(a, b)
    x, y = as_tensor(x, type_), as_tensor(y, type_)
    if type_ is bf16:  # Triton gives float32 for it
        x, y, type_ = x.float(), y.float(), fp32
    if type_ is uint64:
        return Value(_unsigned(np.maximum if is_maximum else np.minimum, x, y), type_)
    if type_.is_int():
        return Value(torch.maximum(x, y) if is_maximum else torch.minimum(x, y), type_)
    if propagate_nan == PropagateNan.ALL:  # torch's own takes the first or the second zero, by the place in memory
        is_first = x >= y if is_maximum else x <= y
        return Value(torch.where(is_first, x, torch.maximum(x, y) if is_maximum else torch.minimum(x, y)), type_)
    return Value(torch.fmax(x, y) if is_maximum else torch.fmin(x, y), type_)


def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Value:
    """The larger operand. Without `propagate_nan` a NaN gives the other one, as on a device; Triton's interpreter gives NaN."""
    return _extremum(x, y, propagate_nan, is_maximum=True)


def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Value:
    return _extremum(x, y, propagate_nan, is_maximum=False)


@method("clamp")
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> Value:
    x = to_value(x)
    if isinstance(x.dtype, PointerType) or x.dtype.is_int():
        raise Rejected(f"clamp of {x.type}; only floats have it")
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)


# --------------------------------------------------------------------------------------------------------------- conversion


@method("cast", "to")
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Value:
    value = to_value(input)
    if isinstance(dtype, str):
        dtype = Type(dtype)
    if not isinstance(dtype, (Type, PointerType)):
        raise Rejected(f"a conversion to {dtype!r}, which is no type")
    if bitcast:
        return _bitcast(value, dtype)
    if fp_downcast_rounding not in (None, "rtne", "rtz"):
        raise Rejected(f"fp_downcast_rounding={fp_downcast_rounding!r}; known: 'rtne', 'rtz'")
    if fp_downcast_rounding is not None:
        is_narrowing = not value.dtype.is_ptr() and value.dtype.is_floating() and dtype.is_floating()
        if not is_narrowing or dtype.primitive_bitwidth >= value.dtype.primitive_bitwidth:
            raise Rejected(f"fp_downcast_rounding for {value.dtype} to {dtype}, which does not narrow a float")
        if fp_downcast_rounding == "rtz":
            return _truncated(value, dtype)
    return cast_value(value, dtype)


def _truncated(value: Value, dtype: Any) -> Value:
    nearest = cast_value(value, dtype)
    beyond = nearest.data.to(value.data.dtype).abs() > value.data.abs()
    toward = torch.nextafter(nearest.data, torch.zeros((), dtype=nearest.data.dtype))
    return Value(torch.where(beyond & value.data.isfinite(), toward, nearest.data), dtype)


def _bitcast(value: Value, dtype: Any) -> Value:
    source = value.dtype
    if source == dtype:
        return value
    if isinstance(source, PointerType) or isinstance(dtype, PointerType):
        return cast_value(value, dtype)
    if source.bits != dtype.bits:
        raise Rejected(f"a bitcast of {source} to {dtype}: {source.bits} and {dtype.bits} bits")
    return Value(_carried(_stored(value.data, source), dtype), dtype)


def _stored(data: Tensor, type_: Type) -> Tensor:
    """The bits as a signed integer of the type's own width."""
    signed = SIGNED_OF_WIDTH[type_.bits]
    if type_.name in ("uint16", "uint32"):
        return data.to(signed)
    return data.contiguous().view(signed)


def _carried(bits: Tensor, type_: Type) -> Tensor:
    if type_.name in ("uint16", "uint32"):
        return reduce_range(bits.to(type_.carrier), type_)
    return bits.view(type_.carrier)


@method("abs", "__abs__")
def abs_(x: Any) -> Value:
    value = to_value(x)
    if isinstance(value.dtype, PointerType):
        raise Rejected(f"abs of {value.type}")
    return Value(value.data.abs() if value.dtype.signed else value.data, value.dtype)


def umulhi(x: Any, y: Any) -> Value:
    a, b, type_ = operands(x, y)
    a, b = as_tensor(a, type_), as_tensor(b, type_)
    if type_.name not in ("int32", "int64", "uint32", "uint64"):
        raise Rejected(f"umulhi of {type_}; expected 32 or 64 bit integers")
    if type_.bits == 32:
        product = (a.to(torch.int64) & 0xFFFFFFFF) * (b.to(torch.int64) & 0xFFFFFFFF)
        high = (product >> 32) & 0xFFFFFFFF
        return Value(high.to(torch.int32) if type_ is int32 else high, type_)
    low_mask = 0xFFFFFFFF
    a0, a1, b0, b1 = a & low_mask, (a >> 32) & low_mask, b & low_mask, (b >> 32) & low_mask
    middle = a1 * b0 + ((a0 * b0 >> 32) & low_mask)
    other = a0 * b1 + (middle & low_mask)
    return Value(a1 * b1 + ((middle >> 32) & low_mask) + ((other >> 32) & low_mask), type_)


def fma(x: Any, y: Any, z: Any) -> Value:
    """x * y + z rounded once (for fp64 twice)."""
    first, _, type_ = operands(x, y)
    type_ = operands(Value(as_tensor(first, type_), type_), to_value(z))[2] if isinstance(z, Value) else type_
    if type_ is fp64 or type_.is_int():
        return add(mul(x, y), z)
    # The product of two singles is exact in double; the sum is made odd if it was rounded, so that rounding again is right.
    singles = (cast_value(to_value(v), type_).data for v in (x, y, z))
    x_, y_, c = align([single.to(torch.float64) for single in singles])
    product = x_ * y_
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = total.view(torch.int64)
    is_off = (error != 0) & error.isfinite() & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    bits = torch.where(is_off, torch.where(away, bits + 1, bits - 1), bits)
    return Value(bits.view(torch.float64).to(torch.float32).to(type_.carrier), type_)
