"""Rules of operators that read where other tensors say. An index out of bounds is an assertion in the kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    computed_like,
    fake_of,
    literal,
    shape_of,
)
from refimpl.codegen.scalars import Apply, FromIndex, Scalar, indirect_scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()
_SYMBOLS = itertools.count()


def indirect(value: Scalar, size: sympy.Expr, *, wraps: bool) -> tuple[sympy.Symbol, Scalar]:
    """A symbol for a place that is read from memory; it is checked to be within the size, which negative ones count from if it
    wraps."""
    place = cast(value, torch.int64)
    limit = FromIndex(size)
    if wraps:
        is_negative = Apply("lt", (place, literal(0, torch.int64)), torch.bool)
        place = apply("where", is_negative, apply("add", place, limit), place, dtype=torch.int64)
    checked = apply("checked_index", place, limit)
    return sympy.Symbol(f"indirect{next(_SYMBOLS)}", integer=True, nonnegative=True), checked


def read_at(x: Stored, indices: Indices, symbols: Sequence[tuple[sympy.Symbol, Scalar]]) -> Scalar:
    """An element whose place is known by symbols."""
    return indirect_scalar(x.at(indices), symbols)


@RULES.rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(state: LoweringState, node: torch.fx.Node, x: Tensor, indices: Sequence[Tensor | None]) -> Computed:
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype not in (torch.int64, torch.int32) for _, index in given):
        raise NotLowered("index by a mask")
    dims = [dim for dim, _ in given]
    source = state.store(x, origins=(node.name,))
    shape = shape_of(fake_of(node))
    depth = max(len(index.shape) for _, index in given)
    is_adjacent = dims == list(range(dims[0], dims[-1] + 1))
    begin = dims[0] if is_adjacent else 0  # where the dimensions of the indices are in the result

    def value(at: Indices) -> Scalar:
        inner = at[begin : begin + depth]
        rest = list(at[:begin] + at[begin + depth :])
        symbols = []
        places: list[sympy.Expr] = []
        for dim in range(len(source.shape)):
            if dim not in dims:
                places.append(rest.pop(0))
                continue
            index = given[dims.index(dim)][1]
            symbols.append(indirect(index.at(broadcast_indices(inner, index.shape)), source.shape[dim], wraps=True))
            places.append(symbols[-1][0])
        return read_at(source, tuple(places), symbols)

    assert len(shape) == depth + len(source.shape) - len(dims)
    return computed_like(node, value, [source, *(index for _, index in given)], cost=4)


@RULES.rule(aten.index_select.default)
def _index_select(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor) -> Computed:
    if not x.shape:
        raise NotLowered("index_select of a scalar")
    source = state.store(x, origins=(node.name,))
    at_dim = dim + len(x.shape) if dim < 0 else dim

    def value(at: Indices) -> Scalar:
        place = index.at((at[at_dim],) if index.shape else ())
        symbol = indirect(place, source.shape[at_dim], wraps=False)
        return read_at(source, (*at[:at_dim], symbol[0], *at[at_dim + 1 :]), [symbol])

    return computed_like(node, value, [source, index], cost=4)


@RULES.rule(aten.gather.default)
def _gather(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> Computed:
    if not x.shape or not index.shape:
        raise NotLowered("gather of a scalar")
    source = state.store(x, origins=(node.name,))
    at_dim = dim + len(x.shape) if dim < 0 else dim

    def value(at: Indices) -> Scalar:
        symbol = indirect(index.at(at), source.shape[at_dim], wraps=False)
        return read_at(source, (*at[:at_dim], symbol[0], *at[at_dim + 1 :]), [symbol])

    return computed_like(node, value, [source, index], cost=4)


@RULES.rule(aten.embedding.default)
def _embedding(
    state: LoweringState, node: torch.fx.Node, weight: Tensor, index: Tensor, padding_idx: Any = -1, *_: Any
) -> Computed:
    source = state.store(weight, origins=(node.name,))

    def value(at: Indices) -> Scalar:
        symbol = indirect(index.at(at[:-1]), source.shape[0], wraps=False)
        return read_at(source, (symbol[0], at[-1]), [symbol])

    return computed_like(node, value, [source, index], cost=4)
