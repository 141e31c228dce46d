"""A backend that keeps the graphs it is given, and what tests ask of graphs."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class HasGraph(Protocol):
    """A graph module, or an exported program."""

    @property
    def graph(self) -> torch.fx.Graph: ...


class Graphs:
    """A compiler that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []

    def __call__(self, graph_module: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
        self.seen.append(graph_module)
        return graph_module


def targets_of(of: HasGraph) -> list[Any]:
    """What the graph calls, in its order."""
    return [node.target for node in of.graph.nodes if node.op == "call_function"]


def placeholders_of(of: HasGraph) -> list[torch.fx.Node]:
    return of.graph.find_nodes(op="placeholder")
