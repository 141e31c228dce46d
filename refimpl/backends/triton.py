"""Backends of Triton kernels.

Counterpart: torch/_inductor/compile_fx.py compile_fx
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions


def triton(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Forward and backward graphs as Triton kernels: on a GPU, or emulated for tensors on the CPU. The graph must return a tuple
    or list."""
    return aot_module_simplified(
        graph_module, example_inputs, fw_compiler=compile_graph, decompositions=codegen_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
