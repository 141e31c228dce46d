"""Signatures of submodules through decomposition: which values of the functional graph are the inputs and outputs of calls.

Counterpart: torch/export/exported_program.py _decompose_exported_program, which runs CollectTracepointsPass once more
Differs: the values are outputs of the graph, as copies, for as long as it is made functional; whatever becomes of the nodes.
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
class ShowingProgram:
    """A program that returns, after all else, the values that signatures of calls name."""

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, Any]
    shown: Sequence[str]

    def finished(
        self, made: FunctionalGraph, entries: Sequence[ModuleCallEntry]
    ) -> tuple[FunctionalGraph, list[ModuleCallEntry]]:
        """The functional graph without those, and the calls with the names that their values have in it. A call whose values
        have no node there has no signature any more."""
        graph, signature = made.graph_module.graph, made.signature
        output = graph.output_node()
        returned: Any = output.args[0]
        first = len(returned) - len(self.shown)
        output.args = (tuple(returned[:first]),)
        names: dict[str, ArgumentSpec | None] = {}
        for name, value in zip(self.shown, returned[first:], strict=True):
            names[name] = _shown_by(value)
        for value in dict.fromkeys(returned[first:]):
            if isinstance(value, fx.Node) and not value.users and _is_mark(value):
                graph.erase_node(value)
        made.graph_module.recompile()
        signature = ExportGraphSignature(signature.input_specs, signature.output_specs[:first])
        return replace(made, signature=signature), [_renamed(entry, names) for entry in entries]


def showing(
    graph_module: fx.GraphModule,
    signature: ExportGraphSignature,
    state_dict: Mapping[str, torch.Tensor],
    constants: Mapping[str, Any],
    entries: Sequence[ModuleCallEntry],
) -> ShowingProgram:
    """The program with outputs for what the signatures of submodules name."""
    calls = [entry.signature for entry in entries[1:] if entry.signature is not None]
    args = [arg for call in calls for arg in (*call.inputs, *call.outputs) if not isinstance(arg, ConstantArgument)]
    nodes = {node.name: node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")}
    shown = [name for name in dict.fromkeys(arg.name for arg in args) if name in nodes]
    if not shown:
        return ShowingProgram(
            graph_module=graph_module,
            graph_signature=signature,
            state_dict=state_dict,
            constants=constants,
            shown=shown,
        )
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    marks: dict[str, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node.op == "output":
            continue
        copies[node] = made = graph.node_copy(node, lambda inner: copies[inner])
        made.name = node.name
        if node.name in shown:
            marks[node.name] = _mark(graph, made)
    returned: Any = fx.map_arg(graph_module.graph.output_node().args[0], lambda inner: copies[inner])
    extra = [marks[name] for name in shown]
    graph.output((*returned, *extra))
    specs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(node), None) for node in extra]
    return ShowingProgram(
        graph_module=fx.GraphModule(graph_module, graph),
        graph_signature=ExportGraphSignature(signature.input_specs, [*signature.output_specs, *specs]),
        state_dict=state_dict,
        constants=constants,
        shown=shown,
    )


def _mark(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A copy of a tensor, which neither writes nor views change; a number itself."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return node
    made = graph.call_function(torch.ops.aten.clone.default, (node,))
    made.meta = {**node.meta, "custom": {**node.meta.get("custom", {}), _MARK: True}}
    return made


def _is_mark(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.clone.default and _MARK in node.meta.get("custom", {})


def _shown_by(value: Any) -> ArgumentSpec | None:
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
