"""Ranges of expressions, by interval arithmetic. A range may be too wide, but never too narrow.

Counterpart: torch/utils/_sympy/value_ranges.py ValueRanges, bound_sympy
Differs: bounds are Python numbers (ints of any size, float infinities), not sympy's; one row per function in a table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from refimpl.symbolic import functions as f

Bound = int | float
INFINITY = math.inf


@dataclass(frozen=True, slots=True, repr=False)
class Range:
    """All numbers from lower to upper, both included; an infinite bound is a float infinity."""

    lower: Bound
    upper: Bound

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise EmptyRange(self.lower, self.upper)

    def __str__(self) -> str:
        """In the form that torch prints, `VR[2, int_oo]`."""
        lower = "-int_oo" if self.lower == -INFINITY else self.lower
        return f"VR[{lower}, {'int_oo' if self.upper == INFINITY else self.upper}]"

    __repr__ = __str__

    def __contains__(self, value: Any) -> bool:
        return self.lower <= value <= self.upper

    def __and__(self, other: Range) -> Range:
        return Range(max(self.lower, other.lower), min(self.upper, other.upper))

    def __or__(self, other: Range) -> Range:
        return Range(min(self.lower, other.lower), max(self.upper, other.upper))

    def is_subset_of(self, other: Range) -> bool:
        return other.lower <= self.lower and self.upper <= other.upper

    def is_singleton(self) -> bool:
        return self.lower == self.upper

    def is_finite(self) -> bool:
        return self.lower != -INFINITY and self.upper != INFINITY


class EmptyRange(ValueError):
    """Two facts about a value exclude each other."""

    def __init__(self, lower: Bound, upper: Bound) -> None:
        super().__init__(f"no number is at least {lower} and at most {upper}")


UNKNOWN = Range(-INFINITY, INFINITY)


def add_bounds(a: Bound, b: Bound) -> Bound:
    """a + b where at most one is infinite, without conversion to float, which would round."""
    if isinstance(a, float) and math.isinf(a):
        return a
    if isinstance(b, float) and math.isinf(b):
        return b
    return a + b


def multiply_bounds(a: Bound, b: Bound) -> Bound:
    """a * b, with 0 * infinity = 0: an infinite bound means arbitrarily large numbers, not the float inf."""
    if a == 0 or b == 0:
        return 0
    if math.inf in (abs(a), abs(b)):
        return INFINITY if (a > 0) == (b > 0) else -INFINITY
    return a * b


def _corners(operation: Callable[[Bound, Bound], Bound], a: Range, b: Range) -> Range:
    values = [operation(x, y) for x in (a.lower, a.upper) for y in (b.lower, b.upper)]
    return Range(min(values), max(values))


def add(a: Range, b: Range) -> Range:
    return Range(add_bounds(a.lower, b.lower), add_bounds(a.upper, b.upper))


def multiply(a: Range, b: Range) -> Range:
    return _corners(multiply_bounds, a, b)


def scale(a: Range, factor: int) -> Range:
    return multiply(a, Range(factor, factor))


def power(base: Range, exponent: int) -> Range:
    """base ** exponent for a constant exponent >= 0."""
    if exponent == 0:
        return Range(1, 1)
    # int ** exponent is exact.
    low, high = _power_of_bound(base.lower, exponent), _power_of_bound(base.upper, exponent)
    if exponent % 2:
        return Range(low, high)
    return Range(0 if 0 in base else min(low, high), max(low, high))


def _power_of_bound(bound: Bound, exponent: int) -> Bound:
    if math.inf == abs(bound):
        return INFINITY if bound > 0 or exponent % 2 == 0 else -INFINITY
    return bound**exponent


def _floor_divide_bounds(a: Bound, b: Bound) -> Bound:
    if math.inf == abs(a):
        return INFINITY if (a > 0) == (b > 0) else -INFINITY
    if math.inf == abs(b):
        return 0 if a == 0 or (a > 0) == (b > 0) else -1
    return a // b


def _without_zero(b: Range) -> Range | None:
    """The range of a divisor without 0; None if 0 splits the range."""
    lower = 1 if b.lower == 0 else b.lower
    upper = -1 if b.upper == 0 else b.upper
    return None if lower > upper or lower < 0 < upper else Range(lower, upper)


def floor_divide(a: Range, b: Range) -> Range:
    divisor = _without_zero(b)
    if divisor is None:
        largest = max(abs(a.lower), abs(a.upper))
        return Range(-largest, largest)
    return _corners(_floor_divide_bounds, a, divisor)


def modulo(a: Range, b: Range) -> Range:
    divisor = _without_zero(b)
    if divisor is None:
        return Range(add_bounds(b.lower, 1), add_bounds(b.upper, -1)) if b.lower < b.upper else UNKNOWN
    if divisor.lower > 0:
        if a.lower >= 0 and a.upper < divisor.lower:
            return a
        upper = add_bounds(divisor.upper, -1)
        return Range(0, min(upper, a.upper) if a.lower >= 0 else upper)
    return Range(add_bounds(divisor.lower, 1), 0)


def _absolute(a: Range) -> Range:
    largest = max(abs(a.lower), abs(a.upper))
    return Range(0, largest) if 0 in a else Range(min(abs(a.lower), abs(a.upper)), largest)


def _all_ones(a: Range, b: Range) -> Bound:
    top = max(a.upper, b.upper)
    return INFINITY if top == INFINITY else (1 << int(top).bit_length()) - 1


def _bitwise(a: Range, b: Range, upper: Callable[[Range, Range], Bound]) -> Range:
    return Range(0, upper(a, b)) if a.lower >= 0 and b.lower >= 0 else UNKNOWN


def _shift(a: Range, b: Range, operation: Callable[[int, int], int]) -> Range:
    if not (a.is_finite() and b.is_finite()) or b.lower < 0 or b.upper > 128:
        return UNKNOWN
    return _corners(lambda x, y: operation(int(x), int(y)), a, b)


def _monotone(operation: Callable[[Any], Any]) -> Callable[[Range], Range]:
    def bound(a: Range) -> Range:
        try:
            lower = a.lower if math.isinf(a.lower) else operation(a.lower)
            upper = a.upper if math.isinf(a.upper) else operation(a.upper)
        except OverflowError:  # an int too large for a float
            return UNKNOWN
        return Range(lower, upper)

    return bound


def _float_corners(operation: Callable[[Any, Any], Any]) -> Callable[[Range, Range], Range]:
    """The range rule for operations whose rounded result is monotone in each argument. Finite ranges only: inf - inf is nan."""

    def bound(a: Range, b: Range) -> Range:
        if not (a.is_finite() and b.is_finite()):
            return UNKNOWN
        try:
            result = _corners(operation, a, b)
        except ArithmeticError:
            return UNKNOWN
        return UNKNOWN if math.isnan(result.lower) or math.isnan(result.upper) else result

    return bound


def _grow(a: Range, b: Range, operation: Callable[[Any, Any], Any], least: float) -> Range:
    """The range of a sum or product without upper bound. `least`: smaller elements could make a nan with infinity."""
    if a.is_finite() and b.is_finite():
        return _float_corners(operation)(a, b)
    if a.lower < least or b.lower < least:
        return UNKNOWN
    try:
        return Range(operation(a.lower, b.lower), INFINITY)
    except OverflowError:
        return UNKNOWN


def _divide(a: Range, b: Range) -> Range:
    """The range of a / b; UNKNOWN if the divisor can have either sign or be 0."""
    if b.lower <= 0 <= b.upper:
        return UNKNOWN
    if a.lower >= 0 and b.lower > 0 and not (a.is_finite() and b.is_finite()):
        try:
            lower = 0.0 if b.upper == INFINITY else a.lower / b.upper
            return Range(lower, INFINITY if a.upper == INFINITY else a.upper / b.lower)
        except OverflowError:
            return UNKNOWN
    return _float_corners(lambda x, y: x / y)(a, b)


def _extremum(pick: Callable[..., Bound]) -> Callable[..., Range]:
    return lambda *args: Range(pick(a.lower for a in args), pick(a.upper for a in args))


RULES: dict[type, Callable[..., Range]] = {
    f.FloorDiv: floor_divide,
    f.PythonMod: modulo,
    f.PowByNatural: lambda a, b: (
        _corners(_pow_bounds, a, b) if a.lower >= 1 and b.lower >= 0 and b.upper <= 64 else UNKNOWN
    ),
    f.Max: _extremum(max),
    f.Min: _extremum(min),
    f.Where: lambda condition, a, b: a | b,
    f.IntAbs: _absolute,
    f.BitwiseAnd: lambda a, b: _bitwise(a, b, lambda x, y: min(x.upper, y.upper)),
    f.BitwiseOr: lambda a, b: _bitwise(a, b, _all_ones),
    f.BitwiseXor: lambda a, b: _bitwise(a, b, _all_ones),
    f.LShift: lambda a, b: _shift(a, b, lambda x, y: x << y),
    f.RShift: lambda a, b: _shift(a, b, lambda x, y: x >> y),
    f.ToFloat: _monotone(float),
    f.FloorToInt: _monotone(math.floor),
    f.CeilToInt: _monotone(math.ceil),
    f.TruncToInt: _monotone(math.trunc),
    f.RoundToInt: _monotone(round),
    f.IntTrueDiv: _divide,
    f.FloatTrueDiv: lambda a, b: _divide(a, b) if a.is_finite() or b.is_finite() else UNKNOWN,  # inf / inf is nan
    f.FloatAdd: lambda a, b: _grow(a, b, operator.add, 0),
    f.FloatSub: _float_corners(operator.sub),
    f.FloatMul: lambda a, b: _grow(a, b, operator.mul, 5e-324),  # 0 * inf is nan
    f.IsNonOverlappingAndDense: lambda *args: Range(0, 1),
}


def _pow_bounds(base: Bound, exponent: Bound) -> Bound:
    return INFINITY if base == INFINITY and exponent > 0 else int(base) ** int(exponent) if base != INFINITY else 1


def default_range(symbol: sympy.Basic) -> Range:
    """The range that follows from a symbol's sympy assumptions."""
    if symbol.is_integer:
        if symbol.is_positive:
            return Range(1, INFINITY)
        if symbol.is_nonnegative:
            return Range(0, INFINITY)
    return UNKNOWN


def bound(
    expr: sympy.Basic, ranges: Mapping[sympy.Symbol, Range], known: Callable[..., Range | None] | None = None
) -> Range:
    """The range of a number expression, from the ranges of its symbols.

    `known` returns a known range of a subexpression such as `s0 // 2`, or None; it is intersected with the computed one.
    """
    if isinstance(expr, sympy.Symbol):
        return ranges.get(expr) or default_range(expr)
    if expr.is_Number:
        value = f.to_number(expr)
        return UNKNOWN if value != value else Range(value, value)
    if isinstance(expr, sympy.Add):
        total = Range(0, 0)
        for term in expr.args:
            total = add(total, bound(term, ranges, known))
        return total
    if isinstance(expr, sympy.Mul):
        product = Range(1, 1)
        for factor in expr.args:
            product = multiply(product, bound(factor, ranges, known))
        return product
    if isinstance(expr, sympy.Pow):
        exponent = expr.exp
        return (
            power(bound(expr.base, ranges, known), int(exponent)) if exponent.is_Integer and exponent >= 0 else UNKNOWN
        )
    rule = RULES.get(type(expr))
    if rule is None:
        return UNKNOWN
    arguments = [UNKNOWN if f.is_condition(a) else bound(a, ranges, known) for a in expr.args]
    result = rule(*arguments)
    fact = None if known is None else known(expr)
    return result if fact is None else result & fact
