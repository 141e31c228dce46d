"""Conditions for contiguity and channels last of symbolic sizes and strides.

Counterpart: sympy_is_contiguous, sympy_is_channels_last_* of torch/fx/experimental/sym_node.py
Differs: comparisons that the known facts decide are decided, so that a new tensor is contiguous without a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from refimpl.symbolic.functions import IsNonOverlappingAndDense, Max
from refimpl.symbolic.operations import relation

Decide = Callable[[sympy.Basic], bool | None]
LayoutRule = Callable[[Sequence[Any], Sequence[Any], Decide], sympy.Basic]


def _decided(condition: sympy.Basic, decide: Decide) -> sympy.Basic:
    value = decide(condition)
    return condition if value is None else sympy.true if value else sympy.false


def _equal(a: Any, b: Any, decide: Decide) -> sympy.Basic:
    return _decided(relation(sympy.Eq, a, b), decide)


def _all(conditions: Sequence[Any]) -> sympy.Basic:
    return sympy.And(*conditions)


def _any(conditions: Sequence[Any]) -> sympy.Basic:
    return sympy.Or(*conditions)


def _contiguous_in(order: Callable[[int], Sequence[int]], dim: int | None = None) -> LayoutRule:
    def rule(sizes: Sequence[Any], strides: Sequence[Any], decide: Decide) -> sympy.Basic:
        if dim is not None and len(sizes) != dim:
            return sympy.false
        expected: Any = sympy.S.One
        conditions = []
        for d in order(len(sizes)):
            fits = _equal(strides[d], expected, decide)
            conditions.append(fits if fits is sympy.true else _any([_equal(sizes[d], sympy.S.One, decide), fits]))
            expected = expected * sizes[d]
        if all(c is sympy.true for c in conditions):
            return sympy.true
        # A tensor without elements has every layout.
        return _any([*(_equal(size, sympy.S.Zero, decide) for size in sizes), _all(conditions)])

    return rule


def _channels_last_strides(order: Sequence[int]) -> LayoutRule:
    def rule(sizes: Sequence[Any], strides: Sequence[Any], decide: Decide) -> sympy.Basic:
        if len(sizes) != len(order):
            return sympy.false
        smallest: Any = sympy.S.Zero
        conditions = [_decided(relation(sympy.Ne, strides[1], sympy.S.Zero), decide)]
        for d in order:
            conditions.append(_decided(relation(sympy.Ne, sizes[d], sympy.S.Zero), decide))
            conditions.append(_decided(relation(sympy.Ge, strides[d], smallest), decide))
            if d == 0:  # N111 and N11W with equal strides are not channels last
                conditions.append(_decided(relation(sympy.Ne, smallest, strides[1]), decide))
            size = sizes[d] if decide(relation(sympy.Ge, sizes[d], sympy.S.One)) else Max(sizes[d], 1)
            smallest = strides[d] * size
        return _all(conditions)

    return rule


def non_overlapping_and_dense(sizes: Sequence[Any], strides: Sequence[Any], decide: Decide) -> sympy.Basic:
    """1 if some order of the dimensions is known to be contiguous, else a function of sizes and strides."""
    remaining = [d for d in range(len(sizes)) if decide(relation(sympy.Eq, sizes[d], sympy.S.One)) is not True]
    expected: Any = sympy.S.One
    while remaining:
        d = next((d for d in remaining if decide(relation(sympy.Eq, strides[d], expected))), None)
        if d is None:
            return IsNonOverlappingAndDense(*sizes, *strides)
        remaining.remove(d)
        expected = expected * sizes[d]
    return sympy.S.One


contiguous = _contiguous_in(lambda dim: range(dim - 1, -1, -1))
channels_last_contiguous_2d = _contiguous_in(lambda dim: (1, 3, 2, 0), 4)
channels_last_contiguous_3d = _contiguous_in(lambda dim: (1, 4, 3, 2, 0), 5)
channels_last_strides_2d = _channels_last_strides((1, 3, 2, 0))
channels_last_strides_3d = _channels_last_strides((1, 4, 3, 2, 0))
