"""A value of a kernel for all programs that run together: a tensor whose leading axis is the program.

Note [uniform values]: the leading axis has size 1 where every program has the same value. Such a value decides a branch or
bounds a loop for all programs at once. Where programs differ, `Diverged` is raised; the launch then starts again, with the
programs split into groups that agree (see launching.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from refimpl.codegen.emulator.types import (
    AnyType,
    BlockType,
    PointerType,
    Type,
    fp32,
    fp64,
    int1,
    integer_range,
    promote,
    promote_with_number,
    type_of_number,
    uint32,
    uint64,
)

Number = bool | int | float
LARGEST_BLOCK = 1 << 20  # elements; Triton's own limit
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Rejected(Exception):
    """Triton's compiler would refuse this. The launch raises WouldNotCompile for it, with the kernel's name and line."""


class Unsupported(Exception):
    """The emulator cannot do this. The launch raises NotEmulated for it."""


class Diverged(Exception):
    """Programs disagree on a value that Python has to know: `values`, one for each program that runs."""

    def __init__(self, values: Tensor) -> None:
        super().__init__("programs disagree")
        self.values = values


class Value:
    """A scalar or block of one type; `data` has shape (programs or 1, *shape) and the type's carrier dtype.

    Pointers are int64 places, counted in elements from the first one of `buffer` (memory.Buffer).
    """

    __slots__ = ("buffer", "data", "dtype")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, data: Tensor, dtype: AnyType, buffer: Any = None) -> None:
        self.data, self.dtype, self.buffer = data, dtype, buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape[1:])

    @property
    def type(self) -> AnyType | BlockType:
        return BlockType(self.dtype, self.shape) if self.data.dim() > 1 else self.dtype

    @property
    def numel(self) -> int:
        return self.data[0].numel()

    def __repr__(self) -> str:
        return f"{self.type}"

    def __bool__(self) -> bool:
        return bool(_agreed(self))

    def __index__(self) -> int:
        if self.dtype.is_ptr() or not self.dtype.is_int():
            raise Rejected(f"a value of {self.type} where an integer is needed")
        return int(_agreed(self))

    __int__ = __index__

    def __float__(self) -> float:
        return float(_agreed(self))

    def __getitem__(self, index: Any) -> Value:
        items = index if isinstance(index, tuple) else (index,)
        data, axis = self.data, 1
        for item in items:
            if item is None:
                data = data.unsqueeze(axis)
            elif not (isinstance(item, slice) and item == slice(None)):
                raise Rejected(f"subscript {item!r} of a block; only None and : have a meaning")
            axis += 1
        return Value(data, self.dtype, self.buffer)


def method(*names: str) -> Callable[[_Function], _Function]:
    """Make a function a method of Value, under its own name or under these."""

    def register(function: _Function) -> _Function:
        for name in names or (function.__name__,):
            setattr(Value, name, function)
        return function

    return register


def _agreed(value: Value) -> Number:
    if value.data.dim() > 1 and value.data[0].numel() != 1:
        raise Rejected(
            f"a block of shape {list(value.shape)} where one value is needed (a condition, or a bound of a loop)"
        )
    flat = value.data.reshape(-1)
    first = flat[0].item()
    if flat.numel() > 1 and not bool((flat == flat[0]).all()):
        raise Diverged(flat)
    return first


# ------------------------------------------------------------------------------------------------------------- conversions


@functools.lru_cache(maxsize=4096)
def _rounded(number: float, type_: Type) -> float:
    return torch.tensor(number, dtype=torch.float64).to(fp32.carrier).to(type_.carrier).item()


def number_as(number: Number, type_: Type) -> Number:
    """The number as a constant of the type, floats rounded. Raises Rejected for an integer that does not fit."""
    if type_.is_floating():
        return _rounded(float(number), type_) if type_ is not fp64 else float(number)
    if type_ is int1:
        return bool(number)
    whole = int(number)
    low, high = integer_range(type_)
    if not low <= whole <= high:
        raise Rejected(f"the number {number} is out of range for {type_}")
    return whole - (1 << 64) if type_ is uint64 and whole >= 1 << 63 else whole


def constant(number: Number, type_: Type | None = None) -> Value:
    """A scalar that all programs share."""
    type_ = type_ or type_of_number(number)
    return Value(torch.tensor([number_as(number, type_)], dtype=type_.carrier), type_)


def to_value(x: Any) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float)):
        return constant(x)
    raise Rejected(f"a {type(x).__name__} where a tensor or a number is needed: {x!r}")


def reduce_range(data: Tensor, type_: Type) -> Tensor:
    """Reduce values of an unsigned type that a wider integer holds to its range; other types wrap by themselves."""
    if type_ is uint32:
        return data & 0xFFFFFFFF
    return data & 0xFFFF if type_.name == "uint16" else data


def cast_data(data: Tensor, source: Type, target: Type) -> Tensor:
    """Values of `source` as those of `target`, rounded to nearest even; to integers truncated and saturated, NaN to 0."""
    if source is target:
        return data
    if target is int1:
        return data != 0
    if target.is_floating():
        if source is uint64:
            data = _unsigned_as_double(data)
        if target.bits == 16 and source is fp64:
            return data.to(torch.float32).to(target.carrier)
        return data.to(target.carrier)
    if source.is_floating():
        return _float_to_integer(data, source, target)
    if target.name in ("uint16", "uint32"):
        return reduce_range(data.to(target.carrier) if target.bits > source.bits else data.to(torch.int64), target).to(
            target.carrier
        )
    return data.to(target.carrier)


def _unsigned_as_double(bits: Tensor) -> Tensor:
    high, low = (bits >> 32) & 0xFFFFFFFF, bits & 0xFFFFFFFF
    return high.to(torch.float64) * 2.0**32 + low.to(torch.float64)


def _float_to_integer(data: Tensor, source: Type, target: Type) -> Tensor:
    # 8 bits are the low byte of a conversion to 16: PTX has cvt.rzi.s16.f32, and none to 8.
    wide = data.to(torch.float64) if source is not fp64 else data
    bits = max(target.bits, 16)
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if target.signed else (0.0, 2.0**bits)
    wide = torch.trunc(torch.nan_to_num(wide, nan=0.0, posinf=high, neginf=low)).clamp(low, high)
    if target is uint64:
        is_high = wide >= 2.0**63
        whole = torch.where(is_high, wide - 2.0**63, wide)
        result = whole.clamp_max(2.0**62).to(torch.int64)
        result = torch.where(
            whole >= 2.0**63, (1 << 63) - 1, torch.where(whole > 2.0**62, whole.to(torch.int64), result)
        )
        return torch.where(is_high, result | -(1 << 63), result)
    saturated = wide >= high
    result = torch.where(saturated, 0.0, wide).to(torch.int64)
    result = torch.where(saturated, (1 << 63) - 1 if bits == 64 else int(high) - 1, result)
    return reduce_range(result, target).to(target.carrier)


def cast_value(x: Value, target: AnyType) -> Value:
    """Convert to another type. Raises Rejected between pointers and floats, as Triton does."""
    if x.dtype is target or x.dtype == target:
        return x
    source = x.dtype
    if isinstance(source, Type) and isinstance(target, Type):
        return Value(cast_data(x.data, source, target), target)
    if isinstance(source, PointerType) and isinstance(target, PointerType):
        if {source.element_ty.name, target.element_ty.name} == {"int1", "int8"}:  # both are bytes
            return Value(x.data, target, x.buffer)
        raise Unsupported(f"a {source} as a {target}")
    if (isinstance(source, PointerType) and target in (uint64,)) or getattr(target, "name", "") == "int64":
        raise Unsupported("a pointer as an integer")
    raise Rejected(f"a conversion of {source} to {target}")


# --------------------------------------------------------------------------------------------------------------- operands


def align(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Blocks of lower rank get axes of size 1 after the program's, as Triton does."""
    rank = max(tensor.dim() for tensor in tensors)
    return [t if t.dim() == rank else t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]) for t in tensors]


def common_shape(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that blocks of one rank broadcast to. Raises Rejected if they do not."""
    sizes = list(shapes)
    first = sizes[0]
    if all(shape == first for shape in sizes):
        return first
    result = tuple(max(axis) if min(axis) else 0 for axis in zip(*sizes, strict=True))
    if any(n not in (1, m) for shape in sizes for n, m in zip(shape, result, strict=True)):
        raise Rejected(f"blocks of shapes {', '.join(str(list(s[1:])) for s in sizes)} do not broadcast")
    return result


def axis_of(axis: int, rank: int, what: str) -> int:
    """The axis of the data tensor: programs come first."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise Rejected(f"{what} along axis {axis!r} of a block with {rank} axes")
    return (axis + rank if axis < 0 else axis) + 1


def operands(a: Any, b: Any, *, is_division: bool = False) -> tuple[Any, Any, Type]:
    """Data of both in the type they are computed in, ready to broadcast; at least one is a tensor, the other may be a number."""
    if isinstance(a, Value) and isinstance(b, Value):
        ta, tb = a.dtype, b.dtype
        if isinstance(ta, PointerType) or isinstance(tb, PointerType):
            raise Rejected(f"invalid operands {a.type} and {b.type}")
        x, y = a.data, b.data
        if ta is tb and not is_division:
            type_ = ta
        else:
            try:
                type_ = promote(ta, tb, is_division=is_division)
            except TypeError as error:
                raise Rejected(str(error)) from error
            x, y = cast_data(x, ta, type_), cast_data(y, tb, type_)
        if x.dim() != y.dim():
            x, y = align((x, y))
        return x, y, type_
    if isinstance(a, Value):
        number, type_ = _number_beside(b, a, is_division=is_division)
        return (a.data if a.dtype is type_ else cast_data(a.data, _scalar_type(a), type_)), number, type_
    if isinstance(b, Value):
        number, type_ = _number_beside(a, b, is_division=is_division)
        return number, (b.data if b.dtype is type_ else cast_data(b.data, _scalar_type(b), type_)), type_
    x, y = to_value(a), to_value(b)
    return operands(x, y, is_division=is_division)


def _scalar_type(x: Value) -> Type:
    if isinstance(x.dtype, PointerType):
        raise Rejected(f"arithmetic on {x.type}")
    return x.dtype


def _number_beside(number: Any, tensor: Value, *, is_division: bool) -> tuple[Number, Type]:
    if not isinstance(number, (bool, int, float)):
        raise Rejected(f"an operand of {type(number).__name__}: {number!r}")
    try:
        type_ = promote_with_number(type_of_number(number), _scalar_type(tensor), is_division=is_division)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if number < 0 and type_.is_int_unsigned():
        raise Rejected(f"the negative number {number} beside a tensor of {type_}")
    return number_as(number, type_), type_


def as_tensor(x: Any, type_: Type) -> Tensor:
    """An operand as a tensor, if it is a number."""
    return x if isinstance(x, Tensor) else torch.tensor([x], dtype=type_.carrier)
