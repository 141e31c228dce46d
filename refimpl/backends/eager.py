"""Backends that run a graph of ops with PyTorch's kernels: the captured graph, or those that the stages of AOT make of it.

Counterpart: torch/_dynamo/backends/debugging.py eager, aot_eager, aot_eager_decomp_partition, aot_eager_default_partitioner;
torchscript.py ts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.data_dependence import left_to_the_front_end
from refimpl.trace.decompositions import decomposition_table


def eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph module's own Python code."""
    return graph_module


def interpreter(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph node by node. An error names the node, and the line of the program that it comes from."""
    running = torch.fx.Interpreter(graph_module)

    def run(*args: Any) -> Any:
        return running.run(*args)

    return run


def aot_eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Trace forward and backward graphs of aten overloads, and run each by `eager`. The graph must return a tuple or list."""
    with left_to_the_front_end():
        return aot_module_simplified(
            graph_module, example_inputs, fw_compiler=eager, partition_fn=min_cut_rematerialization_partition
        )


def aot_eager_decomp_partition(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Forward and backward graphs of decomposed operators, from the min-cut partitioner."""
    return aot_module_simplified(
        graph_module, example_inputs, fw_compiler=eager, partition_fn=min_cut_rematerialization_partition,
        decompositions=decomposition_table,
    )  # fmt: skip


def aot_eager_default_partitioner(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Forward and backward graphs from the default partitioner."""
    return aot_module_simplified(graph_module, example_inputs, fw_compiler=eager, partition_fn=default_partition)


def ts(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph as TorchScript."""
    plain = torch.fx.GraphModule(graph_module, graph_module.graph)  # TorchScript cannot script a lazy graph module
    return torch.jit.script(plain)
