"""Graphs of many kernels on a level that runs none of them: all the time of a call goes into the launch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Kernel, Launcher
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot


class NothingLevel:
    """Runs nothing: what comes out is what was in memory."""

    def launch(
        self, kernel: Kernel, grid: tuple[int, ...], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> None:
        """See Level."""

    def bind(self, kernel: Kernel, constants: Mapping[str, Any]) -> Launcher:
        """What launches nothing."""
        return launch_nothing


def launch_nothing(grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
    """The least that a launch does."""


def graph_of(launches: int, level: Any, *, reuse: bool = True) -> CompiledGraph:
    """A graph of as many kernels, each of which reads the one before it in another order."""
    made: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        options = CodegenOptions(reuse_buffers=reuse)
        made.append(compile_graph(graph_module, example_inputs, level=level, options=options))
        return made[-1]

    def function(x: torch.Tensor) -> torch.Tensor:
        for at in range(launches):
            x = x.sum(at % 2, keepdim=True) + x
            x = x.t().contiguous()
        return x

    compile_aot(function, backend=backend, decompositions=codegen_decompositions())(torch.ones(8, 8))
    return made[-1]
