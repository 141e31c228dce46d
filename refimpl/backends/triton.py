"""Backends of Triton kernels.

Counterpart: torch/_inductor/compile_fx.py compile_fx
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.options import CodegenOptions, codegen_options


def triton(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CodegenOptions | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Forward and backward graphs as Triton kernels: on a GPU, or emulated for tensors on the CPU. The graph must return a tuple
    or list.

    Examples with symbolic sizes of another compiler's are compiled when the sizes are known, once for each combination of them.
    options: fields of CodegenOptions by name, or one. Raises BadParameter for others.
    """
    chosen = codegen_options(options)
    if any(_is_symbolic(value) for value in example_inputs):
        return _BySizes(graph_module, chosen)
    return _compiled(graph_module, example_inputs, chosen)


def _compiled(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CodegenOptions
) -> Callable[..., Any]:
    return aot_module_simplified(
        graph_module,
        example_inputs,
        fw_compiler=functools.partial(compile_graph, options=options),
        decompositions=codegen_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(number, int) for number in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class _BySizes:
    """A graph compiled for each combination of sizes it is called with."""

    def __init__(self, graph_module: torch.fx.GraphModule, options: CodegenOptions) -> None:
        self._graph_module = graph_module
        self._options = options
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple(
            (value.shape, value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else value
            for value in inputs
        )
        if key not in self._compiled:
            self._compiled[key] = _compiled(self._graph_module, inputs, self._options)
        return self._compiled[key](*inputs)
