"""Features of a trace that only few programs need, and the exception by which a trace asks for them.

A trace starts without them, because they cost time: a function mode that sees every call, or another form of the inputs. If the
program needs one, the trace raises `NeedsMore`, and the program is traced again with it.

Counterpart: none; in torch, capture in front of AOT autograd sees these programs first
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl.functionalize.schemas import METADATA_OPS

GEOMETRY_CHANGES = frozenset(op for op in METADATA_OPS if op is not torch.ops.aten.detach_.default)
_AS_STRIDED = torch.ops.aten.as_strided.default
_READ_NUMBER = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNeeds:
    """captured_tensors: tensors of closures and globals become inputs of the graph.
    captured_first: those of them that the backward uses and the program does not. They become inputs before the program runs.
    wrappers: results may be wrapper subclasses although no argument is one.
    assignments: `x.data = y` is recorded.
    remade_views: views are remade when an op such as `x.t_()` changes the geometry of their base.
    scalar_masks: `x[mask] = y` with a 0-dimensional bool mask is recorded as `where`.
    python_kernels: composite ops run their Python kernels. Some C++ kernels (istft) read values, which fake tensors do not have.
    """

    captured_tensors: bool = False
    captured_first: tuple[torch.Tensor, ...] = ()
    wrappers: bool = False
    assignments: bool = False
    remade_views: bool = False
    scalar_masks: bool = False
    python_kernels: bool = False


class NeedsMore(Exception):
    """The program needs a feature that the trace lacks. Not an error: the program is traced again with `needs`."""

    def __init__(self, needs: TraceNeeds) -> None:
        super().__init__(needs)
        self.needs = needs


def with_needs_of(node: torch.fx.Node, needs: TraceNeeds) -> TraceNeeds:
    """`needs` with those of the recorded node; the same object if it adds none.

    An op that changes a geometry needs `remade_views`, and so does `as_strided` of a tensor with an offset. Reading a bool needs
    `scalar_masks`, because it may be the mask of an assignment.
    """
    if node.target in GEOMETRY_CHANGES or (node.target is _AS_STRIDED and _begins_inside(node.args[0])):
        return needs if needs.remade_views else replace(needs, remade_views=True)
    if node.target is _READ_NUMBER and _is_bool(node.args[0]):
        return needs if needs.scalar_masks else replace(needs, scalar_masks=True)
    return needs


def _begins_inside(node: Any) -> bool:
    value = node.meta.get("val")
    offset = value.storage_offset() if isinstance(value, torch.Tensor) else 0
    return type(offset) is int and offset != 0


def _is_bool(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool
