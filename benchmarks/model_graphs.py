"""Training graphs of the models of benchmarks.models, as the backend `triton` gets them on a GPU.

Matrix products, convolutions and random numbers are our own kernels. No kernel is run: the graphs run operator by operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.models import Model, TensorOutputs, all_models
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.options import CodegenOptions
from refimpl.trace.decompositions.device_numerics import following_kernels_of

OPTIONS = CodegenOptions(contractions="template", random="philox")


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """One graph of one model, with example inputs of its shapes and dtypes."""

    model: str
    direction: str  # "forward" or "backward"
    module: torch.fx.GraphModule
    example_inputs: Sequence[Any]


def graphs_of(name: str, make: Callable[[], Model]) -> list[ModelGraph]:
    """Forward graph, then backward graph."""
    torch.manual_seed(0)
    model = make()
    found: list[ModelGraph] = []

    def keeps(direction: str) -> Callable[..., Any]:
        def keep(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            found.append(ModelGraph(name, direction, graph_module, example_inputs))
            return graph_module

        return keep

    with following_kernels_of("cuda"):
        compiled = aot_module_simplified(
            TensorOutputs(model.module.train()), model.inputs, fw_compiler=keeps("forward"), bw_compiler=keeps("backward"),
            partition_fn=functools.partial(partition_for_kernels, options=OPTIONS), decompositions=codegen_decompositions(),
        )  # fmt: skip
        outputs = [output for output in pytree.tree_leaves(compiled(*model.inputs)) if output.requires_grad]
        torch.stack([output.float().sum() for output in outputs]).sum().backward()
    return sorted(found, key=lambda graph: graph.direction, reverse=True)


def graphs_of_models(match: str = "") -> Iterator[list[ModelGraph]]:
    """An iterator with the graphs of each model whose name contains `match`."""
    for name, make in all_models().items():
        if match in name:
            yield graphs_of(name, make)
