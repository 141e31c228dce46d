"""Triton's scalar types, the dtypes of tensors that hold them, and the promotion of two types.

Counterpart: triton/language/core.py dtype; triton/language/semantic.py computation_type_impl
Differs: torch has no arithmetic on wide unsigned integers, so these are carried by int32 or int64: uint16 and uint32 as their
values (reduced after every operation), uint64 as its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import torch


class Kind(IntEnum):
    """Triton's order of kinds: a Python number of no higher kind takes the tensor's type."""

    BOOLEAN = 0
    INTEGRAL = 1
    FLOATING = 2


class Type:
    """A scalar type. `Type("fp32")`; one object per name."""

    _known: dict[str, Type] = {}
    __slots__ = ("bits", "carrier", "kind_", "name", "signed", "storage")

    name: str
    kind_: Kind
    bits: int
    signed: bool
    carrier: torch.dtype  # of tensors that hold values of this type
    storage: torch.dtype  # of these values in memory

    def __new__(cls, name: str) -> Type:
        if name in cls._known:
            return cls._known[name]
        raise ValueError(f"unknown type {name!r}; known: {', '.join(cls._known)}")

    @classmethod
    def define(
        cls, name: str, kind: Kind, bits: int, signed: bool, carrier: torch.dtype, storage: torch.dtype | None = None
    ) -> Type:
        self = object.__new__(cls)
        self.name, self.kind_, self.bits, self.signed, self.carrier = name, kind, bits, signed, carrier
        self.storage = carrier if storage is None else storage
        cls._known[name] = self
        return self

    @classmethod
    def known(cls) -> tuple[Type, ...]:
        """Every type, in the order of definition."""
        return tuple(cls._known.values())

    def __repr__(self) -> str:
        return self.name

    @property
    def in_signatures(self) -> str:
        """How a kernel's signature writes it: `i32` for int32, `u8` for uint8, `fp16` for fp16."""
        return self.name.replace("uint", "u").replace("int", "i")

    @property
    def in_language(self) -> str:
        """Its name in triton.language: `int32` for int32, `float16` for fp16, `bfloat16` for bf16."""
        return self.name.replace("fp", "float").replace("bf", "bfloat")

    # -- what kernels ask a dtype for, under Triton's names

    @property
    def scalar(self) -> Type:
        return self

    @property
    def primitive_bitwidth(self) -> int:
        return self.bits

    @property
    def int_bitwidth(self) -> int:
        return self.bits

    @property
    def itemsize(self) -> int:
        return max(self.bits // 8, 1)

    def kind(self) -> Kind:
        return self.kind_

    def is_ptr(self) -> bool:
        return False

    def is_block(self) -> bool:
        return False

    def is_floating(self) -> bool:
        return self.kind_ is Kind.FLOATING

    def is_standard_floating(self) -> bool:
        return self.kind_ is Kind.FLOATING

    def is_int(self) -> bool:
        return self.kind_ is not Kind.FLOATING

    def is_bool(self) -> bool:
        return self.name == "int1"

    def is_int1(self) -> bool:
        return self.name == "int1"

    def is_int_signed(self) -> bool:
        return self.is_int() and self.signed

    def is_int_unsigned(self) -> bool:
        return self.is_int() and not self.signed

    def __getattr__(self, name: str) -> Any:
        # is_fp32(), is_bf16(), is_int64(), is_uint8() ...
        if name.startswith("is_"):
            return lambda: self.name == name[3:]
        raise AttributeError(f"{self.name} has no attribute {name!r}")


_F, _I = Kind.FLOATING, Kind.INTEGRAL
int1 = Type.define("int1", Kind.BOOLEAN, 1, True, torch.bool)
int8 = Type.define("int8", _I, 8, True, torch.int8)
int16 = Type.define("int16", _I, 16, True, torch.int16)
int32 = Type.define("int32", _I, 32, True, torch.int32)
int64 = Type.define("int64", _I, 64, True, torch.int64)
uint8 = Type.define("uint8", _I, 8, False, torch.uint8)
uint16 = Type.define("uint16", _I, 16, False, torch.int32, torch.uint16)
uint32 = Type.define("uint32", _I, 32, False, torch.int64, torch.uint32)
uint64 = Type.define("uint64", _I, 64, False, torch.int64, torch.uint64)
fp16 = Type.define("fp16", _F, 16, True, torch.float16)
bf16 = Type.define("bf16", _F, 16, True, torch.bfloat16)
fp32 = Type.define("fp32", _F, 32, True, torch.float32)
fp64 = Type.define("fp64", _F, 64, True, torch.float64)

TYPES: tuple[Type, ...] = Type.known()
SIGNATURE_TYPES: Mapping[str, Type] = MappingProxyType({type_.in_signatures: type_ for type_ in TYPES})
POINTER_TYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {type_.storage: f"*{type_.in_signatures}" for type_ in TYPES}
)
"""The type of a tensor argument in a Triton signature, by its dtype: `*fp32` for torch.float32."""
SIGNED_OF_WIDTH = {type_.bits: type_.storage for type_ in TYPES if type_.kind_ is Kind.INTEGRAL and type_.signed}
"""The dtype of signed integers, by their number of bits."""


def type_of_dtype(dtype: torch.dtype) -> Type:
    """The type whose values a tensor of this dtype holds. KeyError for a dtype that Triton's kernels do not have."""
    return SIGNATURE_TYPES[POINTER_TYPES[dtype][1:]]


@dataclass(frozen=True)
class PointerType:
    """A pointer to elements of a type."""

    element_ty: Type
    bits = 64
    primitive_bitwidth = 64

    def __repr__(self) -> str:
        return f"pointer<{self.element_ty}>"

    @property
    def scalar(self) -> PointerType:
        return self

    def is_ptr(self) -> bool:
        return True

    def is_block(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda: False
        raise AttributeError(f"{self} has no attribute {name!r}")


AnyType = Type | PointerType


@dataclass(frozen=True, slots=True)
class BlockType:
    """The type of a block: `x.type`, of which kernels ask `.scalar`, `.element_ty`, `.shape`."""

    element_ty: AnyType
    shape: tuple[int, ...]

    @property
    def scalar(self) -> AnyType:
        return self.element_ty

    def is_block(self) -> bool:
        return True

    def is_ptr(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{list(self.shape)}, {self.element_ty}>"


def integer_range(type_: Type) -> tuple[int, int]:
    if type_ is int1:
        return 0, 1
    return (-(1 << (type_.bits - 1)), (1 << (type_.bits - 1)) - 1) if type_.signed else (0, (1 << type_.bits) - 1)


def type_of_number(number: bool | int | float) -> Type:
    """The type that a Python number has on its own. ValueError for an integer that no type holds."""
    if isinstance(number, bool):
        return int1
    if isinstance(number, int):
        for type_ in (int32, uint32, int64, uint64):
            low, high = integer_range(type_)
            if low <= number <= high:
                return type_
        raise ValueError(f"the integer {number} fits no type of Triton")
    size = abs(number)
    is_single = number != number or size in (0.0, float("inf")) or 2.0**-126 <= size <= (2 - 2.0**-23) * 2.0**127
    return fp32 if is_single else fp64


def promote_integers(a: Type, b: Type) -> Type:
    """The wider of two integer types; of one width, the unsigned one. These are C's usual conversions."""
    if a.signed == b.signed:
        return a if a.bits > b.bits else b
    unsigned, signed = (b, a) if a.signed else (a, b)
    return unsigned if unsigned.bits >= signed.bits else signed


def promote(a: Type, b: Type, *, is_division: bool) -> Type:
    """The type in which two operands, neither a Python number, are computed. TypeError where Triton refuses."""
    if a is b and (a is fp32 or not is_division):
        return a
    pair = (a, b)
    if fp64 in pair:
        return fp64
    if fp32 in pair:
        return fp32
    if fp16 in pair:
        return fp32 if is_division else fp16
    if a is bf16 and b is bf16:
        return fp32 if is_division else bf16
    if bf16 in pair:
        return fp32
    if is_division and a.signed != b.signed:
        raise TypeError(f"/, // and % of {a} and {b}, which differ in sign")
    return promote_integers(a, b)


def promote_with_number(number: Type, tensor: Type, *, is_division: bool) -> Type:
    """The same where one operand is a Python number: it takes the tensor's type unless it is of a higher kind."""
    if number.kind_ <= tensor.kind_:
        return fp32 if is_division and tensor in (fp16, bf16) else tensor
    return promote(number, tensor, is_division=is_division)
