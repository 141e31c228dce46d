"""Signatures of submodule calls in strict export, taken from a non-strict export with the same graph.

Counterpart: torch/_export/wrappers.py _wrap_submodules in torch/export/_trace.py _export_to_torch_ir
Differs: capture reads bytecode and runs no hooks. So the module is also exported non-strictly, and the nodes of the two graphs
are matched one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, InputSpec
from refimpl.export.module_call_graph import ModuleCallEntry
from refimpl.export.unflattening.graphs import graph_form


class Program(Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def module_call_graph(self) -> list[ModuleCallEntry]: ...
    @property
    def graph_signature(self) -> ExportGraphSignature: ...
    @property
    def constants(self) -> dict[str, Any]: ...


def take_signatures(program: Program, non_strict: Program) -> None:
    """Copy the call signatures of `non_strict`, and its module stacks, into `program`.

    Raises UnsupportedByRefimpl if the graphs differ in more than the places of sizes and asserts.
    """
    matching = _MatchingState(non_strict, program)
    if not matching.match(list):
        matching = _MatchingState(non_strict, program)  # capture removes unused nodes
        if not matching.match(_used):
            raise _other_graph()
    for other, node in matching.nodes.items():
        if "nn_module_stack" in other.meta:
            node.meta["nn_module_stack"] = dict(other.meta["nn_module_stack"])
    stack: Any = None  # a size that only other nodes need gets the stack of the next node
    known = set(matching.nodes.values())
    for node in reversed(list(program.graph_module.graph.nodes)):
        if _is_number(node) and node not in known and stack is not None:
            node.meta["nn_module_stack"] = dict(stack)
        stack = node.meta.get("nn_module_stack", stack)
    program.module_call_graph[1:] = [_renamed(entry, matching) for entry in non_strict.module_call_graph[1:]]


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
        seen="preserve_module_call_signature in strict export of a module whose strict and non-strict graphs differ",
        supported="modules for which both graphs are the same",
        do="export with strict=False",
    )


class _MatchingState:
    """Matches the nodes of two graphs; symbolic numbers by their expressions. Mutable."""

    def __init__(self, theirs: Program, ours: Program) -> None:
        self._programs = theirs, ours
        self._theirs, self._ours = theirs.graph_module, ours.graph_module
        self.nodes: dict[fx.Node, fx.Node] = {}
        self._symbols: dict[Any, Any] = {}

    def match(self, chosen: Callable[[Any], list[fx.Node]]) -> bool:
        """Whether all nodes except numbers and asserts are the same, in order. chosen: returns the nodes to compare."""
        lists = [[n for n in chosen(module.graph.nodes) if not _is_passive(n)] for module in (self._theirs, self._ours)]
        if not self._match_inputs() or len(lists[0]) != len(lists[1]):
            return False
        for other, node in zip(*lists, strict=True):
            if other.op == node.op == "placeholder":
                continue
            if other.op != node.op or not self._is_same_target(other, node):
                return False
            if not (self._is_same(other.args, node.args) and self._is_same(other.kwargs, node.kwargs)):
                return False
            self.nodes.setdefault(other, node)
            self._learn(other.meta.get("val"), node.meta.get("val"))
        return True

    def _match_inputs(self) -> bool:
        """Match placeholders by kind and target; constant tensors also by their values."""
        theirs, ours = self._programs
        nodes = self._ours.graph.find_nodes(op="placeholder")
        left = [
            (spec, node, ours.constants.get(spec.target or ""))
            for spec, node in zip(ours.graph_signature.input_specs, nodes, strict=True)
        ]
        others = self._theirs.graph.find_nodes(op="placeholder")
        for spec, other in zip(theirs.graph_signature.input_specs, others, strict=True):
            value = theirs.constants.get(spec.target or "")
            found = next((each for each in left if _is_same_input(spec, value, each[0], each[2])), None)
            if found is None:
                return False
            left.remove(found)
            self.nodes[other] = found[1]
            self._learn(other.meta.get("val"), found[1].meta.get("val"))
        return not left

    def name_of(self, name: str) -> str:
        """The name of our node that matches their node of this name. Raises UnsupportedByRefimpl if there is none."""
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
        """Match symbols in the same places."""
        pairs = [(other, value)]
        if isinstance(other, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip(other.shape, value.shape, strict=False))
        for one, two in pairs:
            if isinstance(one, torch.SymInt) and isinstance(two, torch.SymInt) and one.node.expr.is_Symbol:
                self._symbols.setdefault(one.node.expr, two.node.expr)


def _is_same_input(other: InputSpec, value: Any, spec: InputSpec, own: Any) -> bool:
    if other.kind is not spec.kind:
        return False
    if other.kind is InputKind.USER_INPUT:
        return other.arg.name == spec.arg.name
    if other.kind is InputKind.CONSTANT_TENSOR and value is not own:
        is_alike = (value.shape, value.dtype, value.device) == (own.shape, own.dtype, own.device)
        return is_alike and torch.equal(value, own)
    return other.target == spec.target


def _used(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Nodes that the outputs or side effects depend on."""
    needed: set[fx.Node] = set()
    found = list(nodes)
    for node in reversed(found):
        if node in needed or node.is_impure():
            needed.update((node, *node.all_input_nodes))
    return [node for node in found if node in needed]


def _is_number(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), SYMBOLIC_TYPES)


def _is_passive(node: fx.Node) -> bool:
    """Whether the node computes a number from other numbers or sizes, or asserts one."""
    if node.target is torch.ops.aten._assert_scalar.default:
        return True
    return node.op == "call_function" and _is_number(node) and not _reads_data(node)


def _reads_data(node: fx.Node) -> bool:
    return node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
