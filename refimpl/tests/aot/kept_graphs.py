"""A compiler that keeps the graphs it is given, and what tests ask of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl.aot_entry_points import aot_function
from refimpl.tests.graphs import placeholders_of, targets_of

Tensor = torch.Tensor


class Compiler:
    """Runs graphs as they are, and keeps them by kind, in the order of compilation."""

    def __init__(self, *, is_boxed: bool = False) -> None:
        self.graphs: list[tuple[str, torch.fx.GraphModule]] = []
        self.is_boxed = is_boxed

    def kind(self, name: str) -> Callable[..., Any]:
        """The compiler of one kind of graph."""

        def compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            self.graphs.append((name, graph_module))
            return graph_module

        return compile

    def function(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The compiled function."""
        return aot_function(
            function, self.kind("fw"), self.kind("bw"), inference_compiler=self.kind("inference"), **options
        )

    def graph(self, name: str) -> torch.fx.GraphModule:
        """The only graph of its kind."""
        (graph_module,) = [graph for kind, graph in self.graphs if kind == name]
        return graph_module

    @property
    def kinds(self) -> list[str]:
        return [name for name, _ in self.graphs]


def outputs_of(graph_module: torch.fx.GraphModule) -> list[Any]:
    return list(graph_module.graph.output_node().args[0])  # type: ignore[call-overload]


def tangents_of(graph_module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in placeholders_of(graph_module) if "tangents" in str(n.target)]


def is_functional(graph_module: torch.fx.GraphModule) -> bool:
    return not any(isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable for t in targets_of(graph_module))


def leaf_of_numbers(*shape: int) -> Tensor:
    return (torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)).requires_grad_()


class Tuple(torch.nn.Module):
    """The argument in a tuple."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x,)
