"""Index arithmetic: affine terms, and divisions that simplify because axes are bounded by their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import sympy

from refimpl.symbolic.functions import FloorDiv, PythonMod, terms_of

ZERO, ONE = sympy.S.Zero, sympy.S.One


def to_index(value: Any) -> Any:
    """An int or SymInt as a sympy expression. A size that guards specialize to 1 becomes 1, because it broadcasts."""
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, sympy.Basic):
        return value
    expr = value.node.expr
    return expr if expr.is_Atom or not _is_guarded_one(value) else ONE


def _is_guarded_one(value: Any) -> bool:
    return value.node.has_hint() and value.node.hint == 1 and (value == 1).node.statically_known_true("", 0)


def product(values: Iterable[Any]) -> sympy.Expr:
    """The product of sizes."""
    return sympy.Mul(*(sympy.sympify(value) for value in values))


def contiguous_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Strides of a contiguous tensor."""
    strides: list[sympy.Expr] = []
    step: sympy.Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def linear(indices: Sequence[sympy.Expr], strides: Sequence[sympy.Expr], offset: Any = 0) -> sympy.Expr:
    """The offset in memory of an element."""
    place = sympy.Add(sympy.sympify(offset), *(index * stride for index, stride in zip(indices, strides, strict=True)))
    if offset == 0 and all(index.is_Atom for index in indices) and not any(stride.is_Add for stride in strides):
        return place  # already a sum of products; this is the usual case
    return place.expand()


def affine_terms(
    expr: sympy.Expr, symbols: frozenset[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, sympy.Expr], sympy.Expr] | None:
    """The factor of each symbol, and the terms without symbols. None if the expression is not affine in the symbols."""
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
    """The greatest value of an expression that is affine in axes, with nonnegative factors. It is then at least 0."""
    terms = affine_terms(expr, frozenset(sizes))
    if terms is None:
        return None
    factors, rest = terms
    if not rest.is_nonnegative or not all(factor.is_nonnegative for factor in factors.values()):
        return None
    return sympy.Add(rest, *(factor * (sizes[symbol] - 1) for symbol, factor in factors.items())).expand()


def simplified(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """An equal expression with fewer divisions, for axes within their sizes."""
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
    """Whether two sizes or indices are equal for all values of the symbols. Neither guesses nor guards."""
    return a == b or (a - b).expand().is_zero is True


def find_split(
    expressions: Iterable[sympy.Expr], sizes: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[sympy.Symbol, sympy.Expr] | None:
    """An axis and the inner size to split it by, so that a division by that size disappears."""
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
    """Whether the size is provably divisible, with a quotient other than 1."""
    if divisor in (ONE, size):
        return False
    if size.is_Integer and divisor.is_Integer:
        return size % divisor == 0
    quotient = size / divisor
    return bool(quotient.is_integer and quotient.is_positive)
