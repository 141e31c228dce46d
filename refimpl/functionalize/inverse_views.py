"""Inverses of view ops: the new value of the viewed tensor after a write to the view.

Counterpart: aten/src/ATen/FunctionalInverses.cpp
Differs: written independently, from the definition of each view op. The old value of the source is read only if the view does not
cover it. A write through a view op without a row here is done by index (refimpl.functionalize.memory).

A rule is `rule(write, v)`: `v` is the new value of the view; the rule returns the new value of the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.functionalize.aliases import ViewStep
from refimpl.functionalize.views import ViewWriter
from refimpl.trace.layouts import is_same_shape

_aten = torch.ops.aten
Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class ViewWrite:
    """A write through one view. `read_source` returns the source's value before the write."""

    step: ViewStep
    views: ViewWriter
    read_source: Callable[[], Node]

    @property
    def source(self) -> torch.Tensor:
        """The source's fake tensor in the given graph."""
        return self.step.source.meta["val"]

    @property
    def view(self) -> torch.Tensor:
        """The view's fake tensor in the given graph."""
        return self.step.node.meta["val"]

    def arguments(self) -> list[Any]:
        """All arguments of the view op after the viewed tensor, in the new graph, with the schema's defaults."""
        placeholder: Any = None
        args, kwargs = self.views.arguments(self.step, placeholder)
        parameters = self.step.target._schema.arguments
        rest = [kwargs.get(p.name, p.default_value) for p in parameters[max(1, len(args)) :]]
        return [*args[1:], *rest]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Emit a call of an op."""
        return self.views.emit.call(target, *args, **kwargs)

    def view_call(self, target: Any, *args: Any) -> Node:
        """Emit a call of a view op, or of its `*_copy` form."""
        return self.call(self.views.op(target), *args)


Rule = Callable[[ViewWrite, Node], Node]


def _reshape(write: ViewWrite, v: Node) -> Node:
    return write.views.reshape(v, write.views.emit.number(write.source.shape))


def _identity(write: ViewWrite, v: Node) -> Node:
    return write.view_call(write.step.target, v) if write.views.is_exact else v


def _transpose(write: ViewWrite, v: Node) -> Node:
    first, second = write.arguments()
    if first == second and not write.views.is_exact:
        return v
    return write.view_call(_aten.transpose.int, v, first, second)


def _t(write: ViewWrite, v: Node) -> Node:
    return write.view_call(_aten.t.default, v)


def _permute(write: ViewWrite, v: Node) -> Node:
    (dims,) = write.arguments()
    order = [dim % len(dims) for dim in dims]
    if order == list(range(len(order))) and not write.views.is_exact:
        return v
    return write.view_call(_aten.permute.default, v, [order.index(dim) for dim in range(len(order))])


def _unsqueeze(write: ViewWrite, v: Node) -> Node:
    return write.view_call(_aten.squeeze.dim, v, *write.arguments())


def _squeeze(write: ViewWrite, v: Node) -> Node:
    """Restore the dimensions that squeeze removed: those of its arguments that have size 1 in the source."""
    rank = write.source.dim()
    asked = [*write.arguments(), None][0]
    chosen = range(rank) if asked is None else [asked] if isinstance(asked, int) else asked
    chosen = {dim % rank for dim in chosen} if rank else set()
    gone = [dim for dim in sorted(chosen) if type(write.source.shape[dim]) is int and write.source.shape[dim] == 1]
    for dim in gone:
        v = write.view_call(_aten.unsqueeze.default, v, dim)
    return v


def _expand(write: ViewWrite, v: Node) -> Node:
    """All elements along an expanded dimension are one element of memory: take the first."""
    for _ in range(write.view.dim() - write.source.dim()):
        v = write.view_call(_aten.select.int, v, 0, 0)
    for dim, size in enumerate(write.source.shape):
        if type(size) is int and size == 1 and not is_same_shape(v.meta["val"].shape[dim : dim + 1], [1]):
            v = write.view_call(_aten.slice.Tensor, v, dim, 0, 1)
    return v


def _select(write: ViewWrite, v: Node) -> Node:
    return write.call(_aten.select_scatter.default, write.read_source(), v, *write.arguments())


def _slice(write: ViewWrite, v: Node) -> Node:
    dim, start, end, step = write.arguments()
    if step == 1 and is_same_shape(write.source.shape, write.view.shape):
        return v
    return write.call(_aten.slice_scatter.default, write.read_source(), v, dim, start, end, step)


def _diagonal(write: ViewWrite, v: Node) -> Node:
    return write.call(_aten.diagonal_scatter.default, write.read_source(), v, *write.arguments())


def _as_strided(write: ViewWrite, v: Node) -> Node:
    size, stride, offset = write.arguments()
    size = list(size)
    for dim, step in enumerate(stride):
        if type(step) is int and step == 0 and not is_same_shape(v.meta["val"].shape[dim : dim + 1], [1]):
            v = write.view_call(_aten.slice.Tensor, v, dim, 0, 1)  # all elements along it are one: take the first
            size[dim] = 1
    source = write.views.with_layout(write.read_source(), write.source)
    offset = write.views.offset(source, write.source, offset)
    return write.call(_aten.as_strided_scatter.default, source, v, size, stride, offset)


def _split(write: ViewWrite, v: Node) -> Node:
    call = write.step.node.args[0]
    index = write.step.output_index
    assert isinstance(call, Node)
    assert index is not None
    _, dim = write.arguments()
    sizes = [part.shape[dim] for part in call.meta["val"]]
    start: Any = sum(sizes[:index])
    number = write.views.emit.number
    start, end = number(start), number(start + sizes[index])
    if len(sizes) == 1:
        return v
    return write.call(_aten.slice_scatter.default, write.read_source(), v, dim, start, end)


def _unbind(write: ViewWrite, v: Node) -> Node:
    (dim,) = write.arguments()
    return write.call(_aten.select_scatter.default, write.read_source(), v, dim, write.step.output_index)


def _view_dtype(write: ViewWrite, v: Node) -> Node:
    return write.views.reinterpreted(_aten.view.dtype, v, write.source.dtype)


def _view_as_real(write: ViewWrite, v: Node) -> Node:
    return write.views.reinterpreted(_aten.view_as_complex.default, v)


def _view_as_complex(write: ViewWrite, v: Node) -> Node:
    return write.views.reinterpreted(_aten.view_as_real.default, v)


def _conj(write: ViewWrite, v: Node) -> Node:
    """Conjugate the values: a lazy conjugation would give the base a conjugate bit."""
    return write.call(_aten.conj_physical.default, v)


def _neg(write: ViewWrite, v: Node) -> Node:
    return write.call(_aten.neg.default, v)


INVERSES: dict[Any, Rule] = {
    _aten.view.default: _reshape,
    _aten._unsafe_view.default: _reshape,
    _aten._reshape_alias.default: _reshape,
    _aten.alias.default: _identity,
    _aten.detach.default: _identity,
    _aten.lift_fresh.default: _identity,
    _aten._fw_primal.default: _identity,
    _aten.transpose.int: _transpose,
    _aten.t.default: _t,
    _aten.permute.default: _permute,
    _aten.unsqueeze.default: _unsqueeze,
    _aten.squeeze.default: _squeeze,
    _aten.squeeze.dim: _squeeze,
    _aten.squeeze.dims: _squeeze,
    _aten.expand.default: _expand,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.diagonal.default: _diagonal,
    _aten.as_strided.default: _as_strided,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.unsafe_split.Tensor: _split,
    _aten.unsafe_split_with_sizes.default: _split,
    _aten.unbind.int: _unbind,
    _aten.view.dtype: _view_dtype,
    _aten.view_as_real.default: _view_as_real,
    _aten.view_as_complex.default: _view_as_complex,
    _aten._conj.default: _conj,
    _aten._neg_view.default: _neg,
}
