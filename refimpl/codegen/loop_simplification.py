"""Simplifies loop nests: drops axes of size 1, splits axes so that divisions disappear, and merges axes that are contiguous in
every access.

Counterpart: torch/_inductor/ir.py simplify_and_reorder, torch/_inductor/sizevars.py simplify_loops
Differs: axes are split as well as merged, and only if that is proved for all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy

from refimpl.codegen.indices import affine_terms, find_split, is_provably_equal, simplified
from refimpl.codegen.loop_ir import Axis, Nest, new_axis
from refimpl.codegen.scalars import FromIndex, Load, Scalar, reindexed, walk


def index_expressions(nest: Nest) -> list[sympy.Expr]:
    """All index expressions of a nest, each once; the index that is written comes last."""
    found: dict[sympy.Expr, None] = {}
    for part in walk(*nest.scalars()):
        if isinstance(part, (Load, FromIndex)):
            found.setdefault(part.index)
    return [*found, nest.index]


def normalised(nest: Nest) -> Nest:
    """The same nest on axes that suit its accesses."""
    nest = _simplify(nest, {})
    for _ in range(16):  # each split removes a division
        sizes = {axis.symbol: axis.size for axis in nest.order}
        split = find_split(index_expressions(nest), sizes)
        if split is None:
            break
        nest = _split(nest, *split)
    return _merged(nest)


def _simplify(nest: Nest, replacements: dict[sympy.Symbol, Any]) -> Nest:
    return reindexed_nest(nest, replacements, {axis.symbol: axis.size for axis in nest.order})


def reindexed_nest(nest: Nest, replacements: dict[sympy.Symbol, Any], sizes: dict[sympy.Symbol, sympy.Expr]) -> Nest:
    """The nest with the axes replaced in all indices. `sizes` are the sizes of all axes after that."""
    known: dict[sympy.Expr, sympy.Expr] = {}

    def new(expr: sympy.Expr) -> sympy.Expr:
        if expr not in known:
            if expr.free_symbols.isdisjoint(replacements):
                known[expr] = simplified(expr, sizes)
            else:
                moved: Any = expr.xreplace(replacements)
                known[expr] = simplified(moved.expand(), sizes)
        return known[expr]

    memo: dict[int, Scalar] = {}
    return replace(
        nest,
        index=new(nest.index),
        value=reindexed(nest.value, new, memo),
        indirect=tuple((symbol, reindexed(place, new, memo)) for symbol, place in nest.indirect),
        condition=None if nest.condition is None else reindexed(nest.condition, new, memo),
    )


def _split(nest: Nest, symbol: sympy.Symbol, inner_size: sympy.Expr) -> Nest:
    axis = next(axis for axis in nest.order if axis.symbol == symbol)
    outer, inner = new_axis(axis.size / inner_size), new_axis(inner_size)

    def spread(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new for old in axes for new in ((outer, inner) if old is axis else (old,)))

    spread_out = replace(nest, axes=spread(nest.axes), reduced=spread(nest.reduced), order=spread(nest.order))
    return _simplify(spread_out, {symbol: outer.symbol * inner_size + inner.symbol})


def _merged(nest: Nest) -> Nest:
    """Merges adjacent axes that are both kept or both reduced."""
    while True:
        expressions = index_expressions(nest)
        pair = next(
            (
                (a, b)
                for a, b in zip(nest.order, nest.order[1:], strict=False)
                if (a in nest.axes) == (b in nest.axes) and can_merge(a, b, expressions)
            ),
            None,
        )
        if pair is None:
            return nest
        outer, inner = pair
        merged = new_axis(outer.size * inner.size)

        def joined(axes: tuple[Axis, ...], outer: Axis = outer, inner: Axis = inner, merged: Axis = merged) -> Any:
            return tuple(merged if axis is inner else axis for axis in axes if axis is not outer)

        nest = replace(nest, axes=joined(nest.axes), reduced=joined(nest.reduced), order=joined(nest.order))
        # Every index contains outer * size + inner, so replacing outer by 0 and inner by the merged axis is equal.
        nest = _simplify(nest, {outer.symbol: sympy.S.Zero, inner.symbol: merged.symbol})


def can_merge(outer: Axis, inner: Axis, expressions: Sequence[sympy.Expr]) -> bool:
    """Whether every index treats the two axes as one."""
    symbols = frozenset((outer.symbol, inner.symbol))
    for expr in expressions:
        if not expr.free_symbols & symbols:
            continue
        terms = affine_terms(expr, symbols)
        if terms is None:
            return False
        factors, rest = terms
        if rest.free_symbols & symbols:
            return False
        outer_factor, inner_factor = factors.get(outer.symbol, sympy.S.Zero), factors.get(inner.symbol, sympy.S.Zero)
        if not is_provably_equal(outer_factor, inner_factor * inner.size):
            return False
    return True
