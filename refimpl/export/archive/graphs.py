"""Records of graphs: their nodes in order, and the functions of higher-order operators.

Counterpart: torch/_export/serde/serialize.py GraphModuleSerializer, GraphModuleDeserializer
Differs: arguments are kept as they are in the node; upstream orders them by the operator's schema.

Note [What of a node's meta is kept]
`val`, `nn_module_stack`, `stack_trace`, `torch_fn`, `unbacked_bindings`, `original_aten`, `seq_nr`, `grad_mode`, `custom`, and a
`source_fn_stack` of functions that every process has. `tensor_meta` (except `requires_grad`) and `device` follow from `val`.
Other keys, such as `from_node`, describe how the graph was made, and are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from refimpl._torch import HigherOrderOperator, OpOverload, pytree
from refimpl.export.archive.errors import (
    ArchiveError,
    field,
    identifier,
    optional,
    path_of_identifiers,
    state_name,
    typed,
)
from refimpl.export.archive.fakes import FakeReader, FakeWriter
from refimpl.export.archive.operators import name_of, named, schema_of
from refimpl.export.archive.sources import sources_record, to_sources
from refimpl.export.archive.symbols import SymbolReader, SymbolWriter
from refimpl.export.archive.values import ValueReader, ValueWriter
from refimpl.symbolic.symbols import AttributeKey, DivideByKey, FromBool, MethodKey
from refimpl.trace.metadata import describe

_PLAIN_META = ("nn_module_stack", "stack_trace", "torch_fn", "seq_nr", "custom")
_METHODS = ("size", "stride", "storage_offset")
_OPS = ("placeholder", "call_function", "get_attr", "output")


class GraphWriter:
    """Writes graph modules, and collects the operators they call."""

    def __init__(self, symbols: SymbolWriter, fakes: FakeWriter) -> None:
        self._symbols = symbols
        self._fakes = fakes
        self._arguments = ValueWriter(symbols, self._argument)
        self._is_input = False
        self._results = ValueWriter(symbols, self._fake)
        self._plain = ValueWriter(symbols, lambda v: None)
        self.operators: dict[str, str | None] = {}

    def _argument(self, value: Any) -> dict[str, str] | None:
        if isinstance(value, fx.Node):
            return {"node": value.name}
        is_operator = isinstance(value, (OpOverload, HigherOrderOperator))
        return {"operator": self._target(value)} if is_operator else None

    def _fake(self, value: Any) -> dict[str, int] | None:
        if not isinstance(value, torch.Tensor):
            return None
        return {"fake": self._fakes.index(value, f"the node {self._name}", is_input=self._is_input)}

    def module(self, module: torch.nn.Module) -> dict[str, Any]:
        """The record of a graph module and its submodules. Raises ArchiveError for unsupported nodes and values."""
        graph = [self._node(node) for node in module.graph.nodes] if isinstance(module, fx.GraphModule) else None
        children = {name: self.module(child) for name, child in module.named_children()}
        record = {"class": type(module).__name__, "nodes": graph, "modules": children}
        if isinstance(module, fx.GraphModule) and "custom" in module.meta:
            record["custom"] = self._plain.record(module.meta["custom"], f"meta['custom'] of a {type(module).__name__}")
        return record

    def _node(self, node: fx.Node) -> dict[str, Any]:
        self._name = where = f"{node.name} ({node.op} of {node.target})"
        if node.op not in _OPS:
            raise ArchiveError(
                seen=f"the node {where}", expected=f"one of {_OPS}", do="export the program with refimpl.export"
            )
        target = self._target(node.target) if node.op == "call_function" else str(node.target)
        record: dict[str, Any] = {"op": node.op, "name": node.name, "target": target}
        if node.args:
            record["args"] = [self._arguments.record(arg, where) for arg in node.args]
        if node.kwargs:
            record["kwargs"] = {name: self._arguments.record(arg, where) for name, arg in node.kwargs.items()}
        record["meta"] = self._meta(node, where)
        return record

    def _target(self, target: Any) -> str:
        name = name_of(target)
        self.operators[name] = schema_of(target)
        return name

    def _meta(self, node: fx.Node, where: str) -> dict[str, Any]:
        meta = node.meta
        found: dict[str, Any] = {
            key: self._plain.record(meta[key], f"{where}, meta[{key!r}],")
            for key in _PLAIN_META
            if meta.get(key) is not None
        }
        if "val" in meta:
            self._is_input = node.op == "placeholder"
            found["val"] = self._results.record(meta["val"], f"{where}, meta['val'],")
        if "tensor_meta" in meta:
            found["requires_grad"] = meta["tensor_meta"].requires_grad  # `val` is detached
        if meta.get("unbacked_bindings"):
            found["unbacked_bindings"] = [
                [self._symbols.expression(symbol), [_step_record(step, where) for step in path]]
                for symbol, path in meta["unbacked_bindings"].items()
            ]
        if meta.get("original_aten") is not None:
            found["original_aten"] = name_of(meta["original_aten"])
        sources = sources_record(meta["source_fn_stack"]) if meta.get("source_fn_stack") else None
        if sources is not None:
            found["source_fn_stack"] = sources
        return found


def _step_record(step: Any, where: str) -> dict[str, Any]:
    match step:
        case AttributeKey():
            return {"attribute": step.name}
        case MethodKey():
            return {"method": step.name}
        case FromBool():
            return {"from_bool": True}
        case DivideByKey():
            return {"divided_by": int(step.divisor)}
        case pytree.SequenceKey():
            return {"index": step.idx}
        case pytree.MappingKey(key=str() | int() as key):
            return {"key": key}
        case _:
            pass
    raise ArchiveError(
        seen=f"{where}: an unbacked binding with {step!r}", expected="keys, sizes, strides and offsets", do="report it"
    )


class GraphReader:
    """Builds graph modules. Only identifiers and literals of the file become part of generated code."""

    def __init__(self, symbols: SymbolReader, fakes: FakeReader, operators: Mapping[str, Any]) -> None:
        """operators: the schemas that the program was saved with. Raises ArchiveError if a schema differs in this process."""
        self._symbols = symbols
        self._targets = {name: _checked_operator(name, schema) for name, schema in operators.items()}
        self._results = ValueReader(symbols, {"fake": fakes.__getitem__})
        self._plain = ValueReader(symbols, {})

    def module(self, record: Any, where: str) -> fx.GraphModule:
        """Build a graph module. Raises ArchiveError for an invalid record."""
        found = self._module(record, where)
        if not isinstance(found, fx.GraphModule):
            raise ArchiveError(seen=f"{where} has no graph", expected="the nodes of the program")
        return found

    def _module(self, record: Any, where: str) -> torch.nn.Module:
        root = torch.nn.Module()
        for name, child in field(record, "modules", dict, where).items():
            root.add_module(identifier(name, where), self._module(child, f"{where}.{name}"))
        if record.get("nodes") is None:
            return root
        graph = self._graph(field(record, "nodes", list, where), root, where)
        made = fx.GraphModule(root, graph, class_name=state_name(field(record, "class", str, where), where))
        if "custom" in record:
            made.meta["custom"] = self._plain.value(record["custom"], f"{where}.custom")
        return made

    def _graph(self, records: list[Any], root: torch.nn.Module, where: str) -> fx.Graph:
        graph = fx.Graph()
        nodes: dict[str, fx.Node] = {}
        is_complete = False

        def node_named(name: Any) -> fx.Node:
            if not isinstance(name, str) or name not in nodes:
                raise ArchiveError(seen=f"{where} uses the node {name!r}", expected="an earlier node")
            return nodes[name]

        arguments = ValueReader(self._symbols, {"node": node_named, "operator": self._operator})
        for position, record in enumerate(records):
            place = f"{where}.nodes[{position}]"
            name = identifier(field(record, "name", str, place), f"{place}.name")
            if name in nodes or is_complete:
                raise ArchiveError(seen=f"{place} is {name!r}", expected="unique names, and the output last")
            op = field(record, "op", str, place)
            args = tuple(arguments.value(arg, place) for arg in record.get("args") or ())
            kwargs = {
                identifier(key, place): arguments.value(arg, place) for key, arg in (record.get("kwargs") or {}).items()
            }
            node = graph.create_node(op, self._target(op, record, root, place), args, kwargs, name=name)
            node.name = name  # fx renames nodes with names of builtins, such as `input`
            self._set_meta(node, record.get("meta") or {}, place)
            nodes[name] = node
            is_complete = op == "output"  # an input may have the name `output`
        if not is_complete:
            raise ArchiveError(seen=f"{where} has no output", expected="a node that returns, the last one")
        return graph

    def _target(self, op: str, record: Any, root: torch.nn.Module, where: str) -> Any:
        target = field(record, "target", str, where)
        if op == "call_function":
            return self._operator(target)
        if op == "get_attr":
            path_of_identifiers(target, where)
            try:
                root.get_submodule(target)
            except AttributeError as error:
                raise ArchiveError(seen=f"{where} reads {target!r}", expected="a graph of the archive") from error
        elif op in ("placeholder", "output"):
            identifier(target, where)
        else:
            raise ArchiveError(seen=f"{where}.op is {op!r}", expected=f"one of {_OPS}")
        return target

    def _operator(self, name: Any) -> Any:
        if not isinstance(name, str) or name not in self._targets:
            raise ArchiveError(seen=f"a node calls {name!r}", expected="an operator of the archive's list")
        return self._targets[name]

    def _set_meta(self, node: fx.Node, record: Any, where: str) -> None:
        meta = typed(record, dict, f"{where}.meta")
        if "val" in meta:
            value = self._results.value(meta["val"], f"{where}.meta.val")
            requires_grad = optional(meta, "requires_grad", bool, where)
            if requires_grad is not None and isinstance(value, torch.Tensor):
                describe(node, value)
                node.meta["tensor_meta"] = node.meta["tensor_meta"]._replace(requires_grad=requires_grad)
            node.meta["val"] = value
        for key in _PLAIN_META:
            if key in meta:
                node.meta[key] = self._plain.value(meta[key], f"{where}.meta.{key}")
        if not isinstance(node.meta.get("stack_trace", ""), str):
            raise ArchiveError(seen=f"{where}.meta.stack_trace is no text", expected="text")
        if "unbacked_bindings" in meta:
            node.meta["unbacked_bindings"] = {
                self._symbols.symbol(name): tuple(_step(step, where) for step in path)
                for name, path in typed(meta["unbacked_bindings"], list, where)
            }
        if "original_aten" in meta:
            node.meta["original_aten"] = named(typed(meta["original_aten"], str, where))
        if "source_fn_stack" in meta:
            node.meta["source_fn_stack"] = to_sources(meta["source_fn_stack"], f"{where}.meta.source_fn_stack")


def _checked_operator(name: str, schema: Any) -> Any:
    target = named(name)
    if schema_of(target) != schema:
        raise ArchiveError(
            seen=f"the program was saved with the operator {schema}",
            expected=f"the one that this process has: {schema_of(target)}",
            do="load it with the versions of torch and libraries that saved it, or export again",
        )
    return target


def _step(record: Any, where: str) -> Any:
    match record:
        case {"attribute": str() as name} if name.isidentifier() and not name.startswith("__"):
            return AttributeKey(name)
        case {"method": str() as name} if name in _METHODS:
            return MethodKey(name)
        case {"from_bool": True}:
            return FromBool()
        case {"divided_by": int() as divisor} if divisor:
            return DivideByKey(divisor)
        case {"index": int() as index}:
            return pytree.SequenceKey(index)
        case {"key": str() | int() as key}:
            return pytree.MappingKey(key)
        case _:
            pass
    raise ArchiveError(
        seen=f"{where}: an unbacked binding with {record!r}", expected="keys, sizes, strides and offsets"
    )
