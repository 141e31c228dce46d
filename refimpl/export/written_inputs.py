"""Which inputs a graph writes to with something that has a history: the update of a functional graph is to have it as well.

Counterpart: none; upstream's functional graphs are for inference
"""

from __future__ import annotations

from typing import Any

from torch import fx

from refimpl._torch import OpOverload
from refimpl.export.region_operators import REGION_OPERATORS, wrap_with_set_grad_enabled


def inputs_with_history(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that are written to and require gradients then: by themselves, through views, in regions with gradients."""
    state = _WritesState()
    placeholders = graph.find_nodes(op="placeholder")
    state.look_at(graph, {node: node for node in placeholders})
    return state.found


class _WritesState:
    """Mutable; one per graph and those of its regions."""

    def __init__(self) -> None:
        self.found: set[fx.Node] = set()

    def look_at(self, graph: fx.Graph, inputs: dict[fx.Node, fx.Node]) -> None:
        """inputs: from nodes of the graph to the placeholder whose memory they are."""
        owners = dict(inputs)
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.target in REGION_OPERATORS:
                self._look_into(node, owners)
            elif isinstance(node.target, OpOverload):
                self._look_at_operator(node, owners)

    def _look_at_operator(self, node: fx.Node, owners: dict[fx.Node, fx.Node]) -> None:
        schema: Any = node.target._schema  # type: ignore[union-attr]
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not isinstance(value, fx.Node) or value not in owners:
                continue
            owners[node] = owners[value]
            made = node.meta.get("tensor_meta")
            if argument.alias_info.is_write and getattr(made, "requires_grad", False):
                self.found.add(owners[value])

    def _look_into(self, node: fx.Node, owners: dict[fx.Node, fx.Node]) -> None:
        if node.target is wrap_with_set_grad_enabled and node.args[0] is False:
            return
        place = next(i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
        function: Any = node.args[place]
        body = getattr(node.graph.owning_module, str(function.target))
        inner = body.graph.find_nodes(op="placeholder")
        operands = zip(inner, node.args[place + 1 :], strict=True)
        self.look_at(body.graph, {mine: owners[given] for mine, given in operands if given in owners})
