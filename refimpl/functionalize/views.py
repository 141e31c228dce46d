"""Adds view ops to the functional graph: those of the given graph or their `*_copy` forms, for values with any strides.

Counterpart: ViewMeta.forward, reapply_views of torch's functionalization
Differs: a value whose strides differ from the tensor's in the given graph is copied to those strides before a view that depends
on them; views that change nothing are left out.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.functionalize.aliases import AS_STRIDED, VIEWED, ViewStep
from refimpl.functionalize.emitter import EmitterState, map_nodes
from refimpl.functionalize.geometry import (
    can_view,
    is_dense,
    is_same_geometry,
    is_same_number,
    is_same_shape,
    order_in_memory,
)

_aten = torch.ops.aten
RESHAPES = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten._reshape_alias.default})
IDENTITIES = frozenset({_aten.alias.default, _aten.detach.default, _aten.lift_fresh.default, _aten._fw_primal.default})
_NEEDS_LAYOUT = frozenset({_aten.view.dtype, _aten.view_as_complex.default, _aten.view_as_real.default})


def copying_op(target: Any) -> Any:
    """The `*_copy` form of a view op; the view op itself if it has none."""
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    overload = target._overloadname or "default"
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else target


class ViewWriter:
    """Writes views with an emitter. `is_exact`: also views that change nothing, such as `x.view(x.shape)`, are written."""

    def __init__(self, emit: EmitterState, *, keeps_views: bool, is_exact: bool) -> None:
        self.emit = emit
        self.keeps_views = keeps_views
        self.is_exact = is_exact
        self.new_of: dict[torch.fx.Node, Any] = {}  # given node -> new node, for values that are no tensors

    def op(self, target: Any) -> Any:
        """The view op, or its `*_copy` form, as this graph has it."""
        return target if self.keeps_views else copying_op(target)

    def apply(self, step: ViewStep, parent: torch.fx.Node, source: torch.Tensor) -> torch.fx.Node:
        """The view `step` of `parent`, the new value of the tensor `source`; all results, if the op has several."""
        args, kwargs = self.arguments(step, parent)
        target = step.target
        if target is AS_STRIDED:
            return self.strided(parent, source, *args[1:])
        if target in RESHAPES:
            return self.reshape(parent, args[1], target=target)
        if target in IDENTITIES and not self.is_exact:
            return parent
        if not self.is_exact and _changes_nothing(target, args):
            return parent
        if target is _aten.slice.Tensor and not self.is_exact:
            shape = step.node.meta["val"].shape
            if is_same_shape(shape, source.shape) and _slice_step(args, kwargs) == 1:
                return parent
        if target in _NEEDS_LAYOUT:
            return self.reinterpreted(target, parent, *args[1:])
        return self.emit.call(self.op(target), *args, **kwargs)

    def arguments(self, step: ViewStep, parent: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The step's arguments in the new graph."""
        return self._argument(step.args, parent), self._argument(step.kwargs, parent)

    def _argument(self, value: Any, parent: torch.fx.Node) -> Any:
        if value is VIEWED:
            return parent
        if isinstance(value, (list, tuple)):
            items = [self._argument(item, parent) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self._argument(item, parent) for key, item in value.items()}
        return self.emit.number(map_nodes(value, self.new_of.__getitem__))

    def reshape(self, node: torch.fx.Node, size: Any, *, target: Any = _aten.view.default) -> torch.fx.Node:
        """`node.reshape(size)`: a view if the strides allow one, else a copy."""
        sizes = _values_of(size)
        if not self.is_exact and is_same_shape(sizes, node.meta["val"].shape):
            return node
        if not can_view(node.meta["val"], sizes):
            node = self.contiguous(node)
            target = _aten.view.default
        return self.emit.call(self.op(target), node, size)

    def reinterpreted(self, target: Any, node: torch.fx.Node, *args: Any) -> torch.fx.Node:
        """The elements read as another dtype, after a copy if the strides do not allow it."""
        value = node.meta["val"]
        grows = (
            2.0 if target is _aten.view_as_complex.default else args[0].itemsize / value.element_size() if args else 1.0
        )
        if not _is_readable_as_another(value, grows) or value.is_conj() or value.is_neg():
            node = self.contiguous(node)
        return self.emit.call(self.op(target), node, *args)

    def contiguous(self, node: torch.fx.Node) -> torch.fx.Node:
        """A contiguous copy."""
        return self.emit.call(_aten.clone.default, node, memory_format=torch.contiguous_format)

    def strided(self, node: torch.fx.Node, source: torch.Tensor, size: Any, stride: Any, offset: Any) -> torch.fx.Node:
        """`source.as_strided(size, stride, offset)`, where `node` is the new value of `source`."""
        node = self.with_layout(node, source)
        value = node.meta["val"]
        offset = self.offset(node, source, offset)
        if not self.is_exact:
            is_whole = is_same_shape(_values_of(size), value.shape) and is_same_shape(
                _values_of(stride), value.stride()
            )
            if is_whole and is_same_number(_value_of(offset), value.storage_offset()):
                return node
        return self.emit.call(self.op(AS_STRIDED), node, size, stride, offset)

    def offset(self, node: torch.fx.Node, source: torch.Tensor, offset: Any) -> Any:
        """An offset into the storage of `source`, translated to the storage of `node`."""
        before, now = source.storage_offset(), node.meta["val"].storage_offset()
        if is_same_number(before, now):
            return offset
        return self.emit.number(_value_of(offset) - before + now)

    def with_layout(self, node: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
        """The elements with the strides of `like`."""
        value = node.meta["val"]
        if is_same_geometry(value, like):
            return node
        if not is_dense(like):
            size, stride = self.emit.number(like.shape), self.emit.number(like.stride())
            room = self.emit.call(_aten.new_empty_strided.default, node, size, stride)
            return self.emit.call(_aten.copy.default, room, node)
        order = order_in_memory(like)
        if order == list(range(like.dim())):
            return self.contiguous(node)
        back = [order.index(dim) for dim in range(like.dim())]
        ordered = self.contiguous(self.emit.call(_aten.permute.default, node, order))
        return self.emit.call(_aten.permute.default, ordered, back)


def _is_readable_as_another(value: torch.Tensor, grows: float) -> bool:
    """Whether the memory can be viewed as a dtype whose elements are `grows` times as large."""
    if grows == 1.0 or value.dim() == 0:
        return True
    outer = (*value.stride()[:-1], value.storage_offset())
    return is_same_number(value.stride()[-1], 1) and all(
        type(n) is not int or n % max(1, int(grows)) == 0 for n in outer
    )


def _changes_nothing(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether the call is a permutation that leaves all dimensions in place."""
    if target is _aten.permute.default:
        return list(args[1]) == list(range(len(args[1])))
    return target is _aten.transpose.int and args[1] == args[2]


def _slice_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[4] if len(args) > 4 else kwargs.get("step", 1)


def _value_of(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, torch.fx.Node) else number


def _values_of(numbers: Any) -> list[Any]:
    return [_value_of(number) for number in numbers]
