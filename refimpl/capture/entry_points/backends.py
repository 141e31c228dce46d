"""Backends that tests select by upstream's names, in addition to refimpl.backends.

Counterpart: torch/_dynamo/backends/debugging.py aot_eager_decomp_partition, aot_eager_default_partitioner; torchscript.py ts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends import eager
from refimpl.trace.decompositions import decomposition_table


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


NAMED = (aot_eager_decomp_partition, aot_eager_default_partitioner, ts)
