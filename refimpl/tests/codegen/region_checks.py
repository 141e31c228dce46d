"""What tests of regions share: a backend that keeps what it has compiled, operands, and results with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Level
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.checks import numbers

Function = Callable[..., torch.Tensor]


class Backend:
    """Compiles, and keeps what it has compiled."""

    def __init__(self, *, level: Level | None = None, **options: Any) -> None:
        self.level = level or EmulatorLevel(asserts=True, races=True)
        self.options = CodegenOptions(**{"contractions": "template", **options})
        self.graphs: list[CompiledGraph] = []
        self.returned: list[torch.Tensor] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        self.returned += [node.meta["val"] for node in graph_module.graph.output_node().all_input_nodes]
        self.graphs.append(compile_graph(graph_module, example_inputs, level=self.level, options=self.options))
        return self.graphs[-1]

    def partition(self, *arguments: Any, **keywords: Any) -> Any:
        return partition_for_kernels(*arguments, options=self.options, **keywords)

    @property
    def regions(self) -> list[dict[str, int]]:
        return [dict(graph.regions) for graph in self.graphs]


def compiled_with(function: Callable[..., Any], *, dynamic: bool = False, **options: Any) -> tuple[Any, Backend]:
    backend = Backend(**options)
    compiled = compile_aot(
        function,
        backend=backend,
        partition=backend.partition,
        decompositions=codegen_decompositions(),
        dynamic=dynamic,
    )
    return compiled, backend


def qkv(queries: int = 24, keys: int = 40, width: int = 16, **options: Any) -> list[torch.Tensor]:
    return [
        numbers(2, 3, queries, width, seed=1, **options),
        numbers(2, 3, keys, width, seed=2, **options),
        numbers(2, 3, keys, width, seed=3, **options),
    ]


def results_of(function: Function, inputs: Sequence[torch.Tensor], wanted: int) -> list[torch.Tensor]:
    """The result, and the gradients of the first so many inputs."""
    own = [x.detach().requires_grad_(at < wanted) if x.is_floating_point() else x for at, x in enumerate(inputs)]
    output = function(*own)
    if wanted == 0:
        return [output]
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output.dtype)
    return [output, *torch.autograd.grad(output, own[:wanted], weights)]
