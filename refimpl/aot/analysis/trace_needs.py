"""What a program may need of its trace, and how a trace finds out that it does.

A trace begins prepared for ops on arguments. What few programs do besides costs more: a function mode that sees every call, or
another form of the inputs. Where a program turns out to need it, the trace ends with `NeedsMore`: the program is traced again,
prepared for that.

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
    wrappers: wrapper subclasses may be among the results; among the arguments they may be in any case.
    assignments: `x.data = y` is recorded.
    remade_views: views are made again when `x.t_()` and its like change the geometry of their base.
    scalar_masks: `x[mask] = y`, with a mask that is one bool, becomes `where`.
    python_kernels: composite ops run by their Python kernels. Some kernels in C++ check values, which fake tensors do not have:
    istft."""

    captured_tensors: bool = False
    wrappers: bool = False
    assignments: bool = False
    remade_views: bool = False
    scalar_masks: bool = False
    python_kernels: bool = False


class NeedsMore(Exception):
    """The trace met what it was not prepared for. Not an error: the program is traced again with `needs`."""

    def __init__(self, needs: TraceNeeds) -> None:
        super().__init__(needs)
        self.needs = needs


def with_needs_of(node: torch.fx.Node, needs: TraceNeeds) -> TraceNeeds:
    """`needs`, and what the call needs that was recorded as `node`: the same object where that is nothing.

    Views are made again when an op changes a geometry, and when memory is viewed that begins elsewhere than at 0. A bool that is
    read may be the mask of an assignment, which Python's indexing asks for its value.
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
