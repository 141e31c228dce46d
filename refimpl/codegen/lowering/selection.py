"""Lowers topk with a small k: one maximum after the other, each among the elements that are left.

Counterpart: torch/_inductor/lowering.py
Differs: Inductor always calls the operator for topk.
"""

from __future__ import annotations

import functools

import sympy
import torch

from refimpl.codegen.configurations import PERSISTENT
from refimpl.codegen.indices import ONE, ZERO
from refimpl.codegen.loop_ir import ReductionKind, identity
from refimpl.codegen.lowering.state import (
    KERNEL_DTYPES,
    LoweringState,
    NotLowered,
    Place,
    RuleTable,
    apply,
    cast,
    literal,
    opmath,
    whole,
)
from refimpl.codegen.scalars import Apply, FromIndex, Scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()

# Largest k for rows that fit in a block, and for longer rows, which each result loads twice.
MOST_RESULTS = 8
MOST_RESULTS_OF_LONG_ROWS = 2

# For indices below the first number: the first is added to the index of a NaN, the second is no index.
_MARKS = {torch.int32: (2**30, 2**31 - 1), torch.int64: (2**61, 2**62)}


@RULES.rule(aten.topk.default)
def _topk(
    state: LoweringState, node: torch.fx.Node, x: Tensor, k: object, dim: int = -1, largest: bool = True,
    is_sorted: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if not x.shape or ZERO in x.shape or x.dtype == torch.bool or x.dtype not in KERNEL_DTYPES:
        raise NotLowered(f"topk of {x.dtype}, of shape {x.shape}")
    at_dim = dim + len(x.shape) if dim < 0 else dim
    size = x.shape[at_dim]
    is_short = bool(size.is_Integer and size <= PERSISTENT)
    most = MOST_RESULTS if is_short else MOST_RESULTS_OF_LONG_ROWS
    if not is_sorted:
        raise NotLowered("topk in any order")
    if not isinstance(k, int) or not 1 <= k <= most:
        raise NotLowered(f"{k} results")
    taken = _taken(state, node, x, at_dim, k, largest=largest)
    shape = tuple(sympy.Integer(k) if d == at_dim else size for d, size in enumerate(x.shape))
    row = tuple(ONE if d == at_dim else size for d, size in enumerate(x.shape))
    outputs = []
    for dtype, results in ((x.dtype, [value for value, _ in taken]), (torch.int64, [place for _, place in taken])):
        output = whole(state.new_buffer(shape, dtype, x.device))
        for number, result in enumerate(results):

            def place(at: Indices, number: int = number) -> Place:
                return (*at[:at_dim], sympy.Integer(number), *at[at_dim + 1 :]), []

            def value(at: Indices, result: Tensor = result, dtype: torch.dtype = dtype) -> Scalar:
                return cast(result.at(at), dtype)

            state.write("part", output, row, place, value, (node.name,))
        outputs.append(output)
    return outputs[0], outputs[1]


def _taken(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, k: int, *, largest: bool
) -> list[tuple[Tensor, Tensor]]:
    """Values and indices of the first k, with size 1 in the dimension, in the dtypes of the computation. The first of equal
    values wins; NaN counts as the greatest."""
    source = x if isinstance(x, Stored) else state.store(x, origins=(node.name,))
    compute = opmath(x.dtype)
    is_float = compute.is_floating_point
    kind: ReductionKind = "max" if largest else "min"
    worst = literal(identity(kind, compute), compute)
    size = x.shape[dim]
    integer = torch.int32 if size.is_Integer and size < _MARKS[torch.int32][0] else torch.int64
    moved, nowhere = (literal(mark, integer) for mark in _MARKS[integer])
    found: list[tuple[Tensor, Tensor]] = []

    def read(at: Indices) -> Scalar:
        return cast(source.at(at), compute)

    def is_nan(value: Scalar) -> Scalar:
        return Apply("ne", (value, value), torch.bool)

    def in_row(at: Indices) -> Indices:
        return (*at[:dim], ZERO, *at[dim + 1 :])

    def only_left(at: Indices, value: Scalar, otherwise: Scalar, before: list[Tensor]) -> Scalar:
        """The value at indices that are not taken yet."""
        if not before:
            return value
        free = (Apply("ne", (FromIndex(at[dim], integer), place.at(in_row(at))), torch.bool) for place in before)
        is_left = functools.reduce(lambda a, b: apply("and", a, b), free)
        return apply("where", is_left, value, otherwise, dtype=value.dtype)

    for _ in range(k):
        before = [place for _, place in found]

        def ranked(at: Indices, before: list[Tensor] = before) -> Scalar:
            value = read(at)
            if is_float and not largest:  # NaN comes after infinity, by its index
                value = apply("where", is_nan(value), worst, value, dtype=compute)
            return only_left(at, value, worst, before)

        best = state.reduce(kind, Computed(x.shape, compute, x.device, ranked), [dim], compute, (node.name,))

        def placed(at: Indices, before: list[Tensor] = before, best: Tensor = best) -> Scalar:
            value, wanted, place = read(at), best.at(in_row(at)), FromIndex(at[dim], integer)
            is_best: Scalar = Apply("eq", (value, wanted), torch.bool)
            otherwise: Scalar = nowhere
            if is_float and largest:
                is_best = apply("or", is_best, apply("and", is_nan(value), is_nan(wanted)))
            elif is_float:
                otherwise = apply("where", is_nan(value), apply("add", place, moved), nowhere, dtype=integer)
            return only_left(at, apply("where", is_best, place, otherwise, dtype=integer), nowhere, before)

        first = state.reduce("min", Computed(x.shape, integer, x.device, placed), [dim], integer, (node.name,))
        found.append(_decoded(best, first, moved) if is_float and not largest else (best, first))
    return found


def _decoded(best: Stored, first: Stored, moved: Scalar) -> tuple[Tensor, Tensor]:
    """An index to which the mark was added is that of a NaN."""
    nan = literal(float("nan"), best.dtype)

    def is_nan(at: Indices) -> Scalar:
        return Apply("ge", (first.at(at), moved), torch.bool)

    def value(at: Indices) -> Scalar:
        return apply("where", is_nan(at), nan, best.at(at), dtype=best.dtype)

    def place(at: Indices) -> Scalar:
        return apply("where", is_nan(at), apply("sub", first.at(at), moved), first.at(at), dtype=first.dtype)

    return Computed(best.shape, best.dtype, best.device, value), Computed(best.shape, first.dtype, best.device, place)
