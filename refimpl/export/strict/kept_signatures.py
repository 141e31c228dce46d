"""Preserves the signatures of submodule calls in decomposition: finds their inputs and outputs in the functional graph.

Counterpart: torch/export/exported_program.py _decompose_exported_program, which runs CollectTracepointsPass once more
Differs: copies of these values are outputs of the graph while it is made functional, so their nodes are found afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from refimpl.export.functional_graph import FunctionalGraph
from refimpl.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    OutputKind,
    OutputSpec,
)
from refimpl.export.lifted_graph import argument_of
from refimpl.export.module_call_graph import ModuleCallEntry

_MARK = "kept_signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramWithCallValues:
    """A program with additional outputs at its end: the values that signatures of calls name."""

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, Any]
    names_of_values: Sequence[str]

    def without_call_values(
        self, made: FunctionalGraph, entries: Sequence[ModuleCallEntry]
    ) -> tuple[FunctionalGraph, list[ModuleCallEntry]]:
        """Remove the additional outputs from the functional graph, and rename the values in signatures to its nodes. A call
        with a value that has no node loses its signature."""
        graph, signature = made.graph_module.graph, made.signature
        output = graph.output_node()
        returned: Any = output.args[0]
        first = len(returned) - len(self.names_of_values)
        output.args = (tuple(returned[:first]),)
        names: dict[str, ArgumentSpec | None] = {}
        for name, value in zip(self.names_of_values, returned[first:], strict=True):
            names[name] = _argument_of_value(value)
        for value in dict.fromkeys(returned[first:]):
            if isinstance(value, fx.Node) and not value.users and _is_mark(value):
                graph.erase_node(value)
        made.graph_module.recompile()
        signature = ExportGraphSignature(signature.input_specs, signature.output_specs[:first])
        return replace(made, signature=signature), [_renamed(entry, names) for entry in entries]


def with_call_values(
    graph_module: fx.GraphModule,
    signature: ExportGraphSignature,
    state_dict: Mapping[str, torch.Tensor],
    constants: Mapping[str, Any],
    entries: Sequence[ModuleCallEntry],
) -> ProgramWithCallValues:
    """The program with additional outputs for the values in signatures of submodules."""
    calls = [entry.signature for entry in entries[1:] if entry.signature is not None]
    args = [arg for call in calls for arg in (*call.inputs, *call.outputs) if not isinstance(arg, ConstantArgument)]
    nodes = {node.name: node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")}
    names_of_values = [name for name in dict.fromkeys(arg.name for arg in args) if name in nodes]
    if not names_of_values:
        return ProgramWithCallValues(
            graph_module=graph_module,
            graph_signature=signature,
            state_dict=state_dict,
            constants=constants,
            names_of_values=names_of_values,
        )
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    marks: dict[str, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node.op == "output":
            continue
        copies[node] = made = graph.node_copy(node, lambda inner: copies[inner])
        made.name = node.name
        if node.name in names_of_values:
            marks[node.name] = _mark(graph, made)
    returned: Any = fx.map_arg(graph_module.graph.output_node().args[0], lambda inner: copies[inner])
    extra = [marks[name] for name in names_of_values]
    graph.output((*returned, *extra))
    specs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(node), None) for node in extra]
    return ProgramWithCallValues(
        graph_module=fx.GraphModule(graph_module, graph),
        graph_signature=ExportGraphSignature(signature.input_specs, [*signature.output_specs, *specs]),
        state_dict=state_dict,
        constants=constants,
        names_of_values=names_of_values,
    )


def _mark(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A clone of a tensor, so that writes and views do not change it; a number as it is."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return node
    made = graph.call_function(torch.ops.aten.clone.default, (node,))
    made.meta = {**node.meta, "custom": {**node.meta.get("custom", {}), _MARK: True}}
    return made


def _is_mark(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.clone.default and _MARK in node.meta.get("custom", {})


def _argument_of_value(value: Any) -> ArgumentSpec | None:
    if isinstance(value, fx.Node) and _is_mark(value):
        value = value.args[0]
    return argument_of(value) if isinstance(value, fx.Node) and "val" in value.meta else None


def _renamed(entry: ModuleCallEntry, names: Mapping[str, ArgumentSpec | None]) -> ModuleCallEntry:
    signature = entry.signature
    if signature is None or not entry.fqn:
        return entry
    inputs, outputs = (
        [arg if isinstance(arg, ConstantArgument) else names.get(arg.name, arg) for arg in args]
        for args in (signature.inputs, signature.outputs)
    )
    known = [arg for arg in (*inputs, *outputs) if arg is not None]
    if len(known) < len(inputs) + len(outputs):
        return ModuleCallEntry(fqn=entry.fqn)
    signature = replace(signature, inputs=known[: len(inputs)], outputs=known[len(inputs) :])
    return ModuleCallEntry(fqn=entry.fqn, signature=signature)
