"""The backend that compiles graphs to Triton kernels. It has two names, "triton" and "inductor".

Counterpart: torch/_inductor/compile_fx.py compile_fx
Differs: "inductor" here is this code generator; nothing of PyTorch's Inductor runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.aot.functional_call import Unhooked
from refimpl.aot.options import aot_settings
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.data_dependence import left_to_the_front_end
from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.options import CodegenOptions, codegen_options
from refimpl.pipeline import compile_aot


def triton(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CodegenOptions | Mapping[str, Any] | None = None,
    compiler: Callable[..., Callable[..., Any]] = compile_graph,
) -> Callable[..., Any]:
    """Compile forward and backward graphs to Triton kernels. They run on a GPU, or are emulated for tensors on the CPU. The graph
    must return a tuple or list.

    If the example inputs have symbolic sizes of another compiler, the graph is compiled at the first call, for all sizes that
    satisfy its guards. options: a CodegenOptions, or its fields by name. Raises BadParameter for other names. compiler: is called
    with each graph, its example inputs and the options.
    """
    chosen = codegen_options(options)
    compile_one = functools.partial(compiler, options=chosen)
    partition = functools.partial(partition_for_kernels, options=chosen)
    if any(_is_symbolic(value) for value in example_inputs):
        return _compiled_for_any_size(graph_module, compile_one, partition)
    return _compiled(graph_module, example_inputs, compile_one, partition)


def _compiled(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_one: Callable[..., Any],
    partition: Callable[..., Any],
) -> Callable[..., Any]:
    with left_to_the_front_end(), aot_settings(unlift_effect_tokens=True):
        return aot_module_simplified(
            graph_module,
            example_inputs,
            fw_compiler=compile_one,
            decompositions=codegen_decompositions(),
            partition_fn=partition,
        )


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(number, int) for number in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, SYMBOLIC_TYPES)


def _compiled_for_any_size(
    graph_module: torch.fx.GraphModule, compile_one: Callable[..., Any], partition: Callable[..., Any]
) -> Callable[..., Any]:
    """Compile at the first call with refimpl's own symbols, and again only if a guard on these fails."""
    program = _OfTensors(graph_module, _numbers_that_are_sizes(graph_module))
    compiled = compile_aot(
        program, backend=compile_one, partition=partition, decompositions=codegen_decompositions(), dynamic=True
    )
    return lambda *inputs: compiled(*[value for at, value in enumerate(inputs) if at not in program.sizes])


class _OfTensors(Unhooked):
    """Runs a graph without the inputs that are sizes of other inputs: `sizes` maps their positions to (tensor, dimension)."""

    def __init__(self, graph_module: torch.fx.GraphModule, sizes: dict[int, tuple[int, int]]) -> None:
        super().__init__()
        self.graph_module = graph_module
        self.sizes = sizes

    def forward(self, *given: Any) -> Any:
        count = len(given) + len(self.sizes)
        inputs: list[Any] = [None] * count
        for at, value in zip((at for at in range(count) if at not in self.sizes), given, strict=True):
            inputs[at] = value
        for at, (tensor, dim) in self.sizes.items():
            inputs[at] = inputs[tensor].shape[dim]
        return self.graph_module.forward(*inputs)


def _numbers_that_are_sizes(graph_module: torch.fx.GraphModule) -> dict[int, tuple[int, int]]:
    """For each input that is a SymInt and equals a size of a tensor: the positions of the tensor and of the dimension."""
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("example_value", node.meta.get("val")) for node in placeholders]
    places: dict[str, tuple[int, int]] = {}
    for at, value in enumerate(examples):
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if not isinstance(size, int):
                    places.setdefault(str(size), (at, dim))
    return {
        at: places[str(value)]
        for at, value in enumerate(examples)
        if isinstance(value, torch.SymInt) and str(value) in places
    }
