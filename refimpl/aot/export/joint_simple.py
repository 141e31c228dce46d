"""aot_export_joint_simple: exports a function of flat arguments as a graph with the same arguments and results.

Counterpart: torch/_functorch/aot_autograd.py aot_export_joint_simple
Differs: upstream can test the partitioned forward under a configuration switch, by code that refers to missing names. There is no
such test here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.aot.effects import TOKEN
from refimpl.aot.export.function import _aot_export_function
from refimpl.aot.export.view_and_mutation import OutputType, ViewAndMutationMeta
from refimpl.aot.export_errors import ConventionChanged
from refimpl.trace.options import DecompositionTable


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: DecompositionTable | None = None,
) -> torch.fx.GraphModule:
    """The graph of `func`. Without a backward it has the arguments and results of `func`.

    A joint graph is called with (args, tangents) and returns (results, a gradient or None for each argument). A partitioner can
    split it: its forward takes the arguments of `func` and returns the results of `func`, then saved values.
    Raises ConventionChanged for a function that mutates an input, returns an alias of an input, has side effects, or takes or
    returns nested containers. Raises another ExportError for what no export supports.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and trace_joint):
        graph_module, metadata, in_spec, out_spec = _aot_export_function(
            func,
            args,
            num_params_buffers=num_params_buffers,
            decompositions=decompositions,
            trace_joint=trace_joint,
        )
    _refuse_code_around(metadata, is_joint=trace_joint)
    if any(str(node.target).startswith(TOKEN) for node in graph_module.graph.find_nodes(op="placeholder")):
        raise ConventionChanged(
            "aot_export_joint_simple does not support side effects, which are ordered by tokens among inputs and outputs",
            expected="a function without side effects",
            do="use aot_export_module",
        )
    _refuse_nesting(in_spec.children()[0], "inputs")
    _refuse_nesting(out_spec, "outputs")
    return graph_module


def _refuse_code_around(metadata: ViewAndMutationMeta, *, is_joint: bool) -> None:
    """Raises ConventionChanged if an input is mutated, or an output is an alias of an input or a differentiable view."""
    if metadata.mutated_inp_runtime_indices:
        raise ConventionChanged(
            f"aot_export_joint_simple does not support input mutations: input {metadata.mutated_inp_runtime_indices[0]} is "
            "written to",
            expected="a function that leaves its inputs alone",
            do="return the new value, or use aot_export_module",
        )
    for position, info in enumerate(metadata.output_info):
        if info.output_type in (OutputType.is_input, OutputType.alias_of_input):
            raise ConventionChanged(
                "aot_export_joint_simple gives no outputs over the memory of inputs: "
                f"output {position} has the memory of input {info.base_idx}",
                expected="outputs with memory of their own",
                do="return a clone of it",
            )
        if is_joint and info.requires_grad and info.output_type is not OutputType.non_alias:
            raise ConventionChanged(
                "aot_export_joint_simple gives no outputs over shared memory, where they require gradients: "
                f"output {position} is {info.output_type.name}",
                expected="outputs with memory of their own",
                do="return a clone of it",
            )


def _refuse_nesting(spec: pytree.TreeSpec, what: str) -> None:
    if spec.type not in (tuple, list):
        raise ConventionChanged(
            f"aot_export_joint_simple requires {what} to be a single list/tuple; they are {spec}",
            expected="a flat tuple or list",
            do="put them into a tuple",
        )
    for position, child in enumerate(spec.children()):
        if not child.is_leaf():
            raise ConventionChanged(
                f"aot_export_joint_simple requires individual {what} not to be pytrees; number {position} is {child}",
                expected="a flat tuple or list",
                do="flatten with torch.utils._pytree.tree_flatten, and unflatten inside",
            )
