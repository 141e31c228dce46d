"""Signatures of submodules in strict export: those that running the module's Python shows, where it gives the same graph.

Counterpart: torch/_export/wrappers.py _wrap_submodules in torch/export/_trace.py _export_to_torch_ir
Differs: what capture reads is bytecode, in which no hook runs. The module is exported once more by running it, and its calls are
those of the strict graph node by node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.graph_signature import ConstantArgument
from refimpl.export.module_call_graph import ModuleCallEntry
from refimpl.export.unflatten_graphs import graph_form


class Program(Protocol):
    """What of an ExportedProgram is needed here."""

    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def module_call_graph(self) -> list[ModuleCallEntry]: ...


def take_signatures(program: Program, beside: Program) -> None:
    """Puts the calls of `beside` into `program`, and the module stacks that belong to them.

    Raises UnsupportedByRefimpl where the graphs are not the same, but for when sizes are asked for.
    """
    matching = _MatchingState(beside.graph_module, program.graph_module)
    if not matching.match():
        raise _other_graph()
    for other, node in matching.nodes.items():
        if "nn_module_stack" in other.meta:
            node.meta["nn_module_stack"] = dict(other.meta["nn_module_stack"])
    stack: Any = None  # of a number that is there for others, that of what comes next
    known = set(matching.nodes.values())
    for node in reversed(list(program.graph_module.graph.nodes)):
        if _is_number(node) and node not in known and stack is not None:
            node.meta["nn_module_stack"] = dict(stack)
        stack = node.meta.get("nn_module_stack", stack)
    program.module_call_graph[1:] = [_renamed(entry, matching) for entry in beside.module_call_graph[1:]]


def _renamed(entry: ModuleCallEntry, matching: _MatchingState) -> ModuleCallEntry:
    signature = entry.signature
    if signature is None:
        return entry
    inputs, outputs = (
        [arg if isinstance(arg, ConstantArgument) else replace(arg, name=matching.name_of(arg.name)) for arg in args]
        for args in (signature.inputs, signature.outputs)
    )
    return ModuleCallEntry(fqn=entry.fqn, signature=replace(signature, inputs=inputs, outputs=outputs))


def _other_graph() -> UnsupportedByRefimpl:
    return UnsupportedByRefimpl(
        seen="preserve_module_call_signature in strict export of a module whose bytecode gives another graph than running it",
        supported="signatures of submodules where both give the same",
        do="export with strict=False",
    )


class _MatchingState:
    """Which node of one graph is which of another. Numbers are known by their expressions. Mutable."""

    def __init__(self, theirs: fx.GraphModule, ours: fx.GraphModule) -> None:
        self._theirs, self._ours = theirs, ours
        self.nodes: dict[fx.Node, fx.Node] = {}
        self._symbols: dict[Any, Any] = {}

    def match(self) -> bool:
        """Whether all nodes but numbers and assertions are the same, in the same order."""
        lists = [[n for n in module.graph.nodes if not _is_passive(n)] for module in (self._theirs, self._ours)]
        if len(lists[0]) != len(lists[1]):
            return False
        for other, node in zip(*lists, strict=True):
            if other.op != node.op or not self._is_same_target(other, node):
                return False
            if not (self._is_same(other.args, node.args) and self._is_same(other.kwargs, node.kwargs)):
                return False
            self.nodes[other] = node
            self._learn(other.meta.get("val"), node.meta.get("val"))
        return True

    def name_of(self, name: str) -> str:
        """Of the node here that is the one of that name there. Raises UnsupportedByRefimpl where there is none."""
        other = next((node for node in self._theirs.graph.nodes if node.name == name), None)
        if other is None:
            return name
        if other in self.nodes:
            return self.nodes[other].name
        for node in self._ours.graph.nodes:
            if _is_number(other) and _is_number(node) and self._is_same(other, node):
                return node.name
        raise _other_graph()

    def _is_same_target(self, other: fx.Node, node: fx.Node) -> bool:
        if node.op in ("placeholder", "output"):
            return True
        if node.op != "get_attr":
            return other.target == node.target
        values = getattr(self._theirs, str(other.target)), getattr(self._ours, str(node.target))
        if not all(isinstance(value, fx.GraphModule) for value in values):
            return values[0] is values[1]
        return graph_form(values[0]) == graph_form(values[1])

    def _is_same(self, other: Any, value: Any) -> bool:
        match other:
            case fx.Node() if _is_number(other):
                return _is_number(value) and self._expression(other) == value.meta["val"].node.expr
            case fx.Node():
                return self.nodes.get(other) is value
            case list() | tuple():
                is_list = isinstance(value, (list, tuple)) and len(value) == len(other)
                return is_list and all(map(self._is_same, other, value))
            case dict():
                return isinstance(value, dict) and self._is_same(list(other.items()), list(value.items()))
            case slice():
                parts = (other.start, other.stop, other.step)
                return isinstance(value, slice) and self._is_same(parts, (value.start, value.stop, value.step))
            case float() | complex():
                return repr(other) == repr(value)
            case _:
                return type(other) is type(value) and other == value

    def _expression(self, other: fx.Node) -> Any:
        return other.meta["val"].node.expr.xreplace(self._symbols)

    def _learn(self, other: Any, value: Any) -> None:
        """Symbols that stand in the same places are the same."""
        pairs = [(other, value)]
        if isinstance(other, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip(other.shape, value.shape, strict=False))
        for one, two in pairs:
            if isinstance(one, torch.SymInt) and isinstance(two, torch.SymInt) and one.node.expr.is_Symbol:
                self._symbols.setdefault(one.node.expr, two.node.expr)


def _is_number(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_passive(node: fx.Node) -> bool:
    """Whether it only computes a number of others, or checks one."""
    if node.target is torch.ops.aten._assert_scalar.default:
        return True
    return node.op == "call_function" and _is_number(node) and not _reads_data(node)


def _reads_data(node: fx.Node) -> bool:
    return node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
