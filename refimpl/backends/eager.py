"""Backends that run the graph's own ops with PyTorch's kernels, unchanged.

Counterpart: torch/_dynamo/backends/debugging.py eager, aot_eager
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.data_dependence import left_to_the_front_end


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
