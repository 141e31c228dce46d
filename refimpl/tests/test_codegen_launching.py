"""How compiled graphs launch: each kernel once, whatever it is called, and with little in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Level
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.pipeline import compile_aot


def _compiled(function: Callable[..., Any], level: Level | None = None) -> tuple[Any, list[CompiledGraph]]:
    graphs: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        graphs.append(compile_graph(graph_module, example_inputs, level=level))
        return graphs[-1]

    return compile_aot(function, backend=backend, decompositions=codegen_decompositions()), graphs


def _layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x.sort(1)[0] * 2 - 1
    return x.sort(0)[0] * 2 - 2


def test_what_is_printed_alike_is_one_kernel() -> None:
    compiled, graphs = _compiled(_layers)
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(x), _layers(x))
    (graph,) = graphs
    assert len(graph.kernels) == 2
    assert [launch.kernel.name for launch in graph.printed] == ["kernel_0"] * 4 + ["kernel_1"]
