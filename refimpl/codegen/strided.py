"""Recovers strides from an index expression: directly if it is affine in the dimensions, else after splitting dimensions.

Counterpart: torch/_inductor/ir.py is_storage_and_layout, FixedLayout.make_indexer; ReinterpretView
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from refimpl.codegen.indices import ONE, ZERO, affine_terms, find_split, is_provably_equal, simplified
from refimpl.codegen.loop_ir import Axis, new_axis

_MOST_SPLITS = 8  # of one index


def strides_of(place: sympy.Expr, axes: Sequence[Axis]) -> tuple[tuple[sympy.Expr, ...], sympy.Expr] | None:
    """The stride of each axis, and the offset. None if an axis has no single stride. An axis of size 1 has stride 0."""
    parts: dict[sympy.Symbol, list[Axis]] = {axis.symbol: [axis] for axis in axes}
    sizes = {axis.symbol: axis.size for axis in axes}
    place = simplified(place, sizes)
    for _ in range(_MOST_SPLITS):  # each split removes a division
        split = find_split([place], sizes)
        if split is None:
            break
        symbol, inner_size = split
        outer, inner = new_axis(sizes.pop(symbol) / inner_size), new_axis(inner_size)
        sizes |= {outer.symbol: outer.size, inner.symbol: inner.size}
        moved: Any = place.xreplace({symbol: outer.symbol * inner_size + inner.symbol})
        place = simplified(moved.expand(), sizes)
        for pieces in parts.values():
            at = next((at for at, piece in enumerate(pieces) if piece.symbol == symbol), None)
            if at is not None:
                pieces[at : at + 1] = [outer, inner]
    terms = affine_terms(place, frozenset(sizes))
    if terms is None:
        return None
    factors, offset = terms
    strides: list[sympy.Expr] = []
    for axis in axes:
        pieces = parts[axis.symbol]
        steps = [factors.get(piece.symbol, ZERO) for piece in pieces]
        for outer_step, step, piece in zip(steps, steps[1:], pieces[1:], strict=False):
            if not is_provably_equal(outer_step, step * piece.size):
                return None
        strides.append(ZERO if axis.size == ONE else steps[-1])
    return tuple(strides), offset
