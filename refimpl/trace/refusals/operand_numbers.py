"""Numbers that eager's kernels convert to the dtype they compute in, and refuse where it does not hold them.

Operands of arithmetic and comparisons are not among them: they become tensors without dimensions, whose conversion wraps or
gives infinities.

Counterpart: c10/util/TypeCast.h overflows, c10/core/Scalar.h Scalar::to
Differs: asked before a call is taken apart or becomes part of a kernel; what does not fit is left to the operator, which raises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.dtypes import FLOAT, INT, common_dtype_of, kind_of

# By the names of arguments: of the operands' common dtype; of that with the number among the operands; operands alone.
_CONVERTED = frozenset(
    [
        *("alpha", "beta", "fill_value", "input_scale", "lambd", "lower", "max_val", "min_val"),
        *("negative_slope", "s", "scale", "threshold", "upper", "value", "weight"),
    ]
)
_PROMOTED = frozenset(["min", "max", "exponent"])
_OPERANDS = frozenset(["self", "other"])
_FACTORS = frozenset(["add", "sub", "rsub", "index_add"])  # whose alpha is no truth value
_PLACES = frozenset(["index", "mask"])
_NUMBERS = (bool, int, float, complex)
_SMALL = 64  # what all dtypes hold


def number_fits(number: complex, dtype: torch.dtype) -> bool:
    """Whether a number is converted to the dtype without an error. Negative integers wrap in unsigned ones."""
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
    """Whether all numbers that the operator converts fit. Symbolic ones, and operands without a dtype, are taken to."""
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
    """The names of an operator's arguments that are converted."""
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
