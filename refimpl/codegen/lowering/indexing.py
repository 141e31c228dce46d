"""Lowerings of indexing operators. An index out of bounds is a failed assertion in the kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, product
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
from refimpl.codegen.scalars import Apply, FromIndex, Scalar, indirect_scalar, with_places
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()
_SYMBOLS = itertools.count()


def indirect(
    value: Scalar, size: sympy.Expr, *, wraps: bool, check: str = "checked_index"
) -> tuple[sympy.Symbol, Scalar]:
    """A symbol for an index loaded from memory, which is checked against the size; negative indices wrap if `wraps`. `check`: a
    function of BOUNDS_MESSAGES."""
    place = cast(value, torch.int64)
    limit = FromIndex(size)
    if wraps:
        is_negative = Apply("lt", (place, literal(0, torch.int64)), torch.bool)
        place = apply("where", is_negative, apply("add", place, limit), place, dtype=torch.int64)
    checked = apply(check, place, limit)
    return new_place(), checked


def new_place() -> sympy.Symbol:
    """A symbol for an index that is loaded from memory."""
    return sympy.Symbol(f"indirect{next(_SYMBOLS)}", integer=True, nonnegative=True)


def read_at(x: Tensor, indices: Indices, symbols: Sequence[tuple[sympy.Symbol, Scalar]]) -> Scalar:
    """The element at indices that contain symbols of loaded indices."""
    if isinstance(x, Stored):
        return indirect_scalar(x.at(indices), symbols)
    value = with_places(x.at(indices), symbols)
    assert value is not None
    return value


def readable(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Sequence[int], points: Indices) -> Tensor:
    """A tensor to load from with loaded indices along `dims`: the tensor itself, computed at each load, if there are fewer loads
    than elements; else stored in memory."""
    if isinstance(x, Computed) and state.facts.guess(product(points)) < state.facts.guess(product(x.shape)):
        places = [(new_place(), literal(0, torch.int64)) for _ in dims]
        indices = [sympy.Symbol(f"at{dim}", integer=True, nonnegative=True) for dim in range(len(x.shape))]
        for dim, (symbol, _) in zip(dims, places, strict=True):
            indices[dim] = symbol
        if with_places(x.at(tuple(indices)), places) is not None:
            return x
    return state.store(x, origins=(node.name,))


@dataclass(frozen=True)
class AdvancedIndex:
    """`x[indices]`. The result has the `depth` dimensions of the indices from dimension `begin` on."""

    x_shape: Indices
    by_dim: dict[int, Tensor]
    shape: Indices
    """The broadcast shape of the indices."""
    begin: int

    @staticmethod
    def of(x_shape: Indices, indices: Sequence[Tensor | None]) -> AdvancedIndex:
        """Raises NotLowered for masks."""
        by_dim = {dim: index for dim, index in enumerate(indices) if index is not None}
        if any(index.dtype not in (torch.int64, torch.int32) for index in by_dim.values()):
            raise NotLowered("index by a mask")
        dims = list(by_dim)
        is_adjacent = dims == list(range(dims[0], dims[-1] + 1))
        shape = broadcast_shape([index.shape for index in by_dim.values()])
        return AdvancedIndex(x_shape, by_dim, shape, dims[0] if is_adjacent else 0)

    @property
    def points(self) -> Indices:
        """The shape of `x[indices]`."""
        rest = tuple(size for dim, size in enumerate(self.x_shape) if dim not in self.by_dim)
        return (*rest[: self.begin], *self.shape, *rest[self.begin :])

    def split(self, at: Indices) -> tuple[Indices, list[sympy.Expr]]:
        """Splits an index of the result into an index of the indices, and one of the dimensions of `x` without an index."""
        end = self.begin + len(self.shape)
        return at[self.begin : end], [*at[: self.begin], *at[end:]]

    def place(self, at: Indices) -> tuple[Indices, list[tuple[sympy.Symbol, Scalar]]]:
        """The index into `x` for an index of the result."""
        inner, rest = self.split(at)
        symbols = []
        places: list[sympy.Expr] = []
        for dim, size in enumerate(self.x_shape):
            if dim not in self.by_dim:
                places.append(rest.pop(0))
                continue
            index = self.by_dim[dim]
            symbols.append(indirect(index.at(broadcast_indices(inner, index.shape)), size, wraps=True))
            places.append(symbols[-1][0])
        return tuple(places), symbols


def broadcast_shape(shapes: Sequence[Indices]) -> Indices:
    """The broadcast shape, by taking the size that is not 1."""
    rank = max(len(shape) for shape in shapes)
    padded = [(ONE,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != ONE), ONE) for sizes in zip(*padded, strict=True))


@RULES.rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(state: LoweringState, node: torch.fx.Node, x: Tensor, indices: Sequence[Tensor | None]) -> Computed:
    index = AdvancedIndex.of(x.shape, indices)
    source = readable(state, node, x, list(index.by_dim), index.points)
    assert len(fake_of(node).shape) == len(index.points)

    def value(at: Indices) -> Scalar:
        return read_at(source, *index.place(at))

    return computed_like(node, value, [source, *index.by_dim.values()], cost=4)


@RULES.rule(aten.index_select.default)
def _index_select(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor) -> Computed:
    if not x.shape:
        raise NotLowered("index_select of a scalar")
    at_dim = dim + len(x.shape) if dim < 0 else dim
    if _is_positions(x):  # the result is the index itself, checked

        def checked_index(at: Indices) -> Scalar:
            return indirect(index.at(at if index.shape else ()), x.shape[0], wraps=False)[1]

        return computed_like(node, checked_index, [index], cost=1)
    source = readable(state, node, x, [at_dim], shape_of(fake_of(node)))

    def value(at: Indices) -> Scalar:
        place = index.at((at[at_dim],) if index.shape else ())
        symbol = indirect(place, source.shape[at_dim], wraps=False)
        return read_at(source, (*at[:at_dim], symbol[0], *at[at_dim + 1 :]), [symbol])

    return computed_like(node, value, [source, index], cost=4)


def _is_positions(x: Tensor) -> bool:
    """Whether element i of the tensor is the integer i."""
    if not isinstance(x, Computed) or len(x.shape) != 1:
        return False
    place = sympy.Symbol("position", integer=True, nonnegative=True)
    value = x.at((place,))
    return isinstance(value, FromIndex) and value.index == place and value.dtype is torch.int64


@RULES.rule(aten.gather.default)
def _gather(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> Computed:
    if not x.shape or not index.shape:
        raise NotLowered("gather of a scalar")
    at_dim = dim + len(x.shape) if dim < 0 else dim
    source = readable(state, node, x, [at_dim], shape_of(fake_of(node)))

    def value(at: Indices) -> Scalar:
        symbol = indirect(index.at(at), source.shape[at_dim], wraps=False, check="checked_place")
        return read_at(source, (*at[:at_dim], symbol[0], *at[at_dim + 1 :]), [symbol])

    return computed_like(node, value, [source, index], cost=4)


@RULES.rule(aten.embedding.default)
def _embedding(
    state: LoweringState, node: torch.fx.Node, weight: Tensor, index: Tensor, padding_idx: Any = -1, *_: Any
) -> Computed:
    source = readable(state, node, weight, [0], shape_of(fake_of(node)))

    def value(at: Indices) -> Scalar:
        symbol = indirect(index.at(at[:-1]), source.shape[0], wraps=False)
        return read_at(source, (symbol[0], at[-1]), [symbol])

    return computed_like(node, value, [source, index], cost=4)
