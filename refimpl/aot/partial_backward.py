"""The backward for the incoming gradients that arrive: what would be computed of the others alone is not, as in eager mode.

Counterpart: none; torch's aot_autograd puts zeros in their place
Differs: a zero is not nothing. It is nan where a derivative is infinite, and a backward of the user's may add to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from refimpl.aot.partition.joint import SYM_TYPES, is_tangent
from refimpl.functionalize.geometry import extent_of

_aten = torch.ops.aten


def is_divisible(backward: torch.fx.GraphModule) -> bool:
    """Not where sizes are symbols, which only a compile before the first call may learn of."""
    return not any(isinstance(node.meta.get("val"), SYM_TYPES) for node in backward.graph.nodes)


def without_tangents(backward: torch.fx.GraphModule, missing: Collection[int]) -> torch.fx.GraphModule | None:
    """A copy of the backward graph that reads none of the tangents at `missing`; gradients of those alone are None.

    Where what is computed of them meets what is not, a sum has one summand less, and any other operator reads zeros.
    None where it is not divisible.
    """
    if not is_divisible(backward):
        return None
    return _Pruning(backward, missing).module()


class _Pruning:
    def __init__(self, given: torch.fx.GraphModule, missing: Collection[int]) -> None:
        self.given = given
        self.graph = torch.fx.Graph()
        self.new: dict[torch.fx.Node, torch.fx.Node] = {}
        tangents = [node for node in given.graph.nodes if is_tangent(node)]
        self.absent = {tangents[position] for position in missing}
        self.present = {node for node in tangents if node not in self.absent}

    def module(self) -> torch.fx.GraphModule:
        for node in self.given.graph.nodes:
            if node.op == "output":
                self.graph.output([self._returned(value) for value in node.args[0]])
                continue
            absent = [read for read in node.all_input_nodes if read in self.absent]
            is_reached = any(read in self.present for read in node.all_input_nodes)
            if absent and not is_reached:
                self.absent.add(node)
                continue
            if is_reached:
                self.present.add(node)
            self.new[node] = self._other_summand(node) or self.graph.node_copy(node, self._read)
        self.graph.eliminate_dead_code()
        return torch.fx.GraphModule(self.given, self.graph)

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
        is_alike = (summand.shape, summand.stride(), summand.dtype) == (total.shape, total.stride(), total.dtype)
        return self.new[left[0]] if is_alike else None

    def _read(self, node: torch.fx.Node) -> torch.fx.Node:
        """The new node; zeros, made where they are first read, for one that is computed of what does not arrive."""
        if node not in self.new:
            like = node.meta["val"]
            extent = extent_of(like)[1] - like.storage_offset()
            flat = self.graph.call_function(
                _aten.zeros.default, ([extent],), {"dtype": like.dtype, "device": like.device}
            )
            self.new[node] = self.graph.call_function(
                _aten.as_strided.default, (flat, list(like.shape), list(like.stride()))
            )
            with torch.no_grad():
                flat.meta["val"] = like.new_empty([extent])
            self.new[node].meta["val"] = like
        return self.new[node]
