"""The backward for the incoming gradients that arrive: what would be computed of the others alone is not, as in eager mode.

Counterpart: none; torch's aot_autograd puts zeros in their place
Differs: a zero is not nothing. It is nan where a derivative is infinite, and a backward of the user's may add to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from refimpl.aot.partition.joint import SYM_TYPES, is_tangent
from refimpl.functionalize.emitter import EmitterState, fake_mode_of, map_nodes
from refimpl.functionalize.geometry import extent_of, is_same_places
from refimpl.functionalize.graph_pass import only_metadata
from refimpl.functionalize.views import RESHAPES, ViewWriter

_aten = torch.ops.aten
# Beside pointwise operators: kernels that ask for no layout, and views that there are of any.
_OF_ANY_LAYOUT = RESHAPES | {
    _aten.expand.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.alias.default,
    _aten.detach.default,
    _aten.clone.default,
    _aten._to_copy.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.cat.default,
}


def is_divisible(backward: torch.fx.GraphModule) -> bool:
    """Not where sizes are symbols, which only a compile before the first call may learn of."""
    return not any(isinstance(node.meta.get("val"), SYM_TYPES) for node in backward.graph.nodes)


def without_tangents(backward: torch.fx.GraphModule, missing: Collection[int]) -> torch.fx.GraphModule | None:
    """A copy of the backward graph that reads none of the tangents at `missing`; gradients of those alone are None.

    Where what is computed of them meets what is not, a sum has one summand less, and any other operator reads zeros.
    What follows has the strides that the summand gives it. None where it is not divisible.
    """
    if not is_divisible(backward):
        return None
    fake_mode = fake_mode_of(backward.graph)
    with only_metadata(fake_mode):
        return _Pruning(backward, missing, EmitterState(fake_mode)).module()


class _Pruning:
    def __init__(self, given: torch.fx.GraphModule, missing: Collection[int], emit: EmitterState) -> None:
        self.given = given
        self.emit = emit
        self.views = ViewWriter(emit, keeps_views=True, is_exact=True)
        self.new: dict[torch.fx.Node, torch.fx.Node] = {}
        tangents = [node for node in given.graph.nodes if is_tangent(node)]
        self.absent = {tangents[position] for position in missing}
        self.present = {node for node in tangents if node not in self.absent}

    def module(self) -> torch.fx.GraphModule:
        for node in self.given.graph.nodes:
            if node.op == "output":
                self.emit.graph.output([self._returned(value) for value in node.args[0]])
                continue
            absent = [read for read in node.all_input_nodes if read in self.absent]
            is_reached = any(read in self.present for read in node.all_input_nodes)
            if absent and not is_reached:
                self.absent.add(node)
                continue
            if is_reached:
                self.present.add(node)
            self.emit.origin = node
            self.new[node] = self._other_summand(node) or self._copied(node)
        self.emit.graph.eliminate_dead_code()
        return torch.fx.GraphModule(self.given, self.emit.graph)

    def _returned(self, value: Any) -> Any:
        return None if value is None or value in self.absent else self.new[value]

    def _other_summand(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """What is left of a sum; None for what is none."""
        if node.target is not _aten.add.Tensor or node.kwargs or len(node.args) != 2:
            return None
        left = [arg for arg in node.args if arg not in self.absent]
        if len(left) != 1 or not isinstance(left[0], torch.fx.Node):
            return None
        summand, total = left[0].meta.get("val"), node.meta.get("val")
        if not isinstance(summand, torch.Tensor) or not isinstance(total, torch.Tensor):
            return None
        return self.new[left[0]] if (summand.shape, summand.dtype) == (total.shape, total.dtype) else None

    def _copied(self, node: torch.fx.Node) -> torch.fx.Node:
        """A kernel that may ask for the layout which the trace had gets that layout."""
        read = self._read if _takes_any_layout(node.target) else self._read_as_traced
        args, kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read)
        if node.target in RESHAPES and not self._is_traced(node.args[0]):
            return self.views.reshape(args[0], args[1], target=node.target)
        return self.emit.copy(node, args, kwargs)

    def _is_traced(self, node: Any) -> bool:
        """Whether the new value has the layout of the given one."""
        given, new = node.meta.get("val"), self._read(node).meta.get("val")
        if not isinstance(given, torch.Tensor) or not isinstance(new, torch.Tensor):
            return True
        return is_same_places(given, new)

    def _read_as_traced(self, node: torch.fx.Node) -> torch.fx.Node:
        new = self._read(node)
        return new if self._is_traced(node) else self.views.with_layout(new, node.meta["val"])

    def _read(self, node: torch.fx.Node) -> torch.fx.Node:
        """The new node; zeros, made where they are first read, for one that is computed of what does not arrive."""
        if node not in self.new:
            like = node.meta["val"]
            extent = extent_of(like)[1] - like.storage_offset()
            flat = self.emit.call(_aten.zeros.default, [extent], dtype=like.dtype, device=like.device)
            self.new[node] = self.emit.call(_aten.as_strided.default, flat, list(like.shape), list(like.stride()))
        return self.new[node]


def _takes_any_layout(target: Any) -> bool:
    return target in _OF_ANY_LAYOUT or torch.Tag.pointwise in getattr(target, "tags", ())
