"""Index arithmetic: what is affine in the axes, and divisions that the bounds of axes decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import sympy

from refimpl.symbolic.functions import FloorDiv, PythonMod, terms_of

ZERO, ONE = sympy.S.Zero, sympy.S.One


def to_index(value: Any) -> Any:
    """An int or a symbolic int as an expression; what guards say is 1 is that: it broadcasts."""
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, sympy.Basic):
        return value
    expr = value.node.expr
    return expr if expr.is_Atom or not _is_guarded_one(value) else ONE


def _is_guarded_one(value: Any) -> bool:
    return value.node.has_hint() and value.node.hint == 1 and (value == 1).node.statically_known_true("", 0)


def product(values: Iterable[Any]) -> sympy.Expr:
    """Of sizes."""
    return sympy.Mul(*(sympy.sympify(value) for value in values))


def contiguous_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Of a tensor without gaps, the last dimension innermost."""
    strides: list[sympy.Expr] = []
    step: sympy.Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def linear(indices: Sequence[sympy.Expr], strides: Sequence[sympy.Expr], offset: Any = 0) -> sympy.Expr:
    """The place in memory."""
    place = sympy.Add(sympy.sympify(offset), *(index * stride for index, stride in zip(indices, strides, strict=True)))
    if offset == 0 and all(index.is_Atom for index in indices) and not any(stride.is_Add for stride in strides):
        return place  # which is most of them, and already a sum of products
    return place.expand()


def affine_terms(
    expr: sympy.Expr, symbols: frozenset[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, sympy.Expr], sympy.Expr] | None:
    """Factors of the symbols, and the rest; None where a symbol is anywhere else."""
    factors: dict[sympy.Symbol, sympy.Expr] = {}
    rest: list[sympy.Expr] = []
    for term in terms_of(expr):
        found = term.free_symbols & symbols
        if not found:
            rest.append(term)
            continue
        if len(found) > 1:
            return None
        (symbol,) = found
        factor = term / symbol
        if factor.free_symbols & symbols:
            return None
        factors[symbol] = factors.get(symbol, ZERO) + factor
    return factors, sympy.Add(*rest)


def upper_bound(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr | None:
    """The greatest value of what is affine in axes with no negative factor; the least is then not below the rest's."""
    terms = affine_terms(expr, frozenset(sizes))
    if terms is None:
        return None
    factors, rest = terms
    if not rest.is_nonnegative or not all(factor.is_nonnegative for factor in factors.values()):
        return None
    return sympy.Add(rest, *(factor * (sizes[symbol] - 1) for symbol, factor in factors.items())).expand()


def simplified(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """The same for all values of the axes, which are below their sizes, with fewer divisions."""
    if not expr.has(FloorDiv, PythonMod):
        return expr

    def simpler(part: Any) -> Any:
        dividend, divisor = part.args
        bound = upper_bound(dividend, sizes)
        if bound is not None and (divisor - bound - 1).is_nonnegative:
            return ZERO if isinstance(part, FloorDiv) else dividend
        return part

    before = None
    while expr != before and expr.has(FloorDiv, PythonMod):
        before = expr
        replaced: Any = expr.replace(lambda part: isinstance(part, (FloorDiv, PythonMod)), simpler)
        expr = replaced.expand()
    return expr


def is_provably_equal(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Of sizes and indices: no guess, and no guard."""
    return a == b or (a - b).expand().is_zero is True


def find_split(
    expressions: Iterable[sympy.Expr], sizes: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[sympy.Symbol, sympy.Expr] | None:
    """An axis and the inner size to split it at, so that a division by that size goes away."""
    for expr in expressions:
        if not expr.has(FloorDiv, PythonMod):
            continue
        for part in sympy.preorder_traversal(expr):
            if not isinstance(part, (FloorDiv, PythonMod)):
                continue
            dividend, divisor = cast(Any, part.args)
            if dividend in sizes and divides(divisor, sizes[dividend]):
                return dividend, divisor
    return None


def divides(divisor: Any, size: Any) -> bool:
    """Whether it surely does, and the quotient is no 1."""
    if divisor in (ONE, size):
        return False
    if size.is_Integer and divisor.is_Integer:
        return size % divisor == 0
    quotient = size / divisor
    return bool(quotient.is_integer and quotient.is_positive)
