"""Checks whether number arguments fit the dtype that eager's kernel converts them to, such as the 300 of `uint8_x.fill_(300)`.

Operands of arithmetic and comparisons are not checked: they become 0-dim tensors, whose conversion wraps or overflows to inf.

Counterpart: c10/util/TypeCast.h overflows, c10/core/Scalar.h Scalar::to
Differs: checked before a call is decomposed or becomes part of a generated kernel. If a number does not fit, the operator itself
runs, and raises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.dtypes import FLOAT, INT, common_dtype_of, kind_of

# Names of number arguments that are converted to the operands' common dtype.
_CONVERTED = frozenset(
    [
        *("alpha", "beta", "fill_value", "input_scale", "lambd", "lower", "max_val", "min_val"),
        *("negative_slope", "s", "scale", "threshold", "upper", "value", "weight"),
    ]
)
_PROMOTED = frozenset(["min", "max", "exponent"])  # converted, and operands of type promotion
_OPERANDS = frozenset(["self", "other"])  # operands of type promotion that are not checked
_FACTORS = frozenset(["add", "sub", "rsub", "index_add"])  # ops that refuse a bool alpha
_PLACES = frozenset(["index", "mask"])
_NUMBERS = (bool, int, float, complex)
_SMALL = 64  # every dtype holds integers up to this


def number_fits(number: complex, dtype: torch.dtype) -> bool:
    """Whether a number converts to the dtype without an error. Negative ints wrap in unsigned dtypes."""
    if isinstance(number, complex):
        return dtype.is_complex
    if kind_of(dtype) == INT:
        limits = torch.iinfo(dtype)
        if isinstance(number, float):
            return limits.min <= number <= float(limits.max)
        return (limits.min or -limits.max) <= number <= limits.max
    if kind_of(dtype) == FLOAT:
        return abs(number) <= torch.finfo(dtype).max or not math.isfinite(number)
    return True


def numbers_fit(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all numbers that the operator converts fit. Symbolic numbers are not checked."""
    names = checked_numbers(func)
    if not names:
        return True
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    numbers = {name: given[name] for name in names if isinstance(given.get(name), _NUMBERS)}
    if all(type(number) is int and abs(number) <= _SMALL for number in numbers.values()):
        return True
    dtype = given.get("dtype") or _common_dtype(given)
    if dtype is None:
        return True
    has_factor = func.overloadpacket.__name__ in _FACTORS and isinstance(numbers.get("alpha"), bool)
    return not (has_factor and dtype != torch.bool) and all(number_fits(number, dtype) for number in numbers.values())


@functools.cache
def checked_numbers(func: Any) -> tuple[str, ...]:
    """The names of an operator's number arguments that its kernel converts."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return ()
    numbers = [argument.name for argument in func._schema.arguments if "number" in str(argument.type)]
    return tuple(name for name in numbers if name in _CONVERTED | _PROMOTED)


def _common_dtype(given: Mapping[str, Any]) -> torch.dtype | None:
    numbers = [value for name, value in given.items() if name in _PROMOTED | _OPERANDS and isinstance(value, _NUMBERS)]
    operands = [
        operand
        for name, operand in given.items()
        if name not in _PLACES and isinstance(getattr(operand, "dtype", None), torch.dtype)
    ]
    if not operands:
        return None
    dimensions = [(operand.dtype, len(operand.shape)) for operand in operands]
    return common_dtype_of(
        [dtype for dtype, rank in dimensions if rank], [dtype for dtype, rank in dimensions if not rank], numbers
    )
