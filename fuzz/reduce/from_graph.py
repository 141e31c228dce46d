"""Turns a graph that Dynamo captured into a structured program: one statement for each node, one argument for each tensor read.

Regions with another grad mode or autocast become a `with` around each of their statements, so that statements can be left out
one by one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.fx.node import _get_qualified_name

from fuzz.program.structure import (
    Block,
    Definition,
    Entries,
    Expr,
    FuzzProgram,
    Items,
    OpCall,
    Operand,
    Ref,
    Statement,
)
from oracle.program.build import PROGRAM_MODULE

_PUBLIC = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_SPECIAL = {"operator.getitem": "getitem", "operator.setitem": "setitem", "builtins.getattr": "getattr"}
_UNNAMED = ("torch", "builtins")  # modules that need no import in a program's source


class NotCapturableError(Exception):
    """The graph has something that no statement can say; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphProgram:
    """The statements of a graph, and the tensors of the graph's module that became arguments behind its placeholders."""

    program: FuzzProgram  # without calls
    constants: tuple[Any, ...]


def program_of_graph(gm: torch.fx.GraphModule) -> GraphProgram:
    """The program of a graph. Its arguments are the placeholders, then `constants`.

    Raises NotCapturableError for higher-order operators, submodules, and functions and values that have no name.
    """
    writer = _Writer(gm)
    for node in gm.graph.nodes:
        writer.node(node)
    if writer.contexts:
        raise NotCapturableError(f"the graph ends inside of `{writer.contexts[-1].header}`")
    program = FuzzProgram(
        arguments=(*writer.arguments, *(f"k{number}" for number in range(len(writer.constants)))),
        statements=tuple(writer.statements),
        result=writer.result,
        definitions=tuple(Definition(name=name, text=f"import {name}") for name in sorted(writer.imports)),
    )
    return GraphProgram(program=program, constants=tuple(writer.constants))


@dataclass(frozen=True, slots=True)
class _Context:
    """A region of the graph: what opened it, and the `with` that it becomes."""

    opened_by: str  # name of the node, or "grad mode"
    header: str


@dataclass(slots=True)
class _Writer:
    gm: torch.fx.GraphModule
    arguments: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    result: Operand = None
    imports: set[str] = field(default_factory=set)
    contexts: list[_Context] = field(default_factory=list)
    _values: dict[str, Operand] = field(default_factory=dict)  # by name of the node

    def node(self, node: torch.fx.Node) -> None:
        """Add what one node says."""
        match node.op:
            case "placeholder":
                self.arguments.append(f"a{len(self.arguments)}")
                self._values[node.name] = Ref(self.arguments[-1])
            case "get_attr":
                self._values[node.name] = self._constant(str(node.target))
            case "call_function":
                self._function(node)
            case "call_method":
                self._add(node, f".{node.target}", node.args)
            case "output":
                self.result = self._operand(node.args[0])
                if isinstance(self.result, Items):
                    self.result = Items(self.result.items, "tuple")
            case _:
                raise NotCapturableError(f"{node.op} of {node.target}")

    def _constant(self, path: str) -> Operand:
        value: Any = self.gm
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise NotCapturableError(f"a {type(value).__name__} inside of the graph")
        self.constants.append(value)
        return Ref(f"k{len(self.constants) - 1}")

    def _function(self, node: torch.fx.Node) -> None:
        assert callable(node.target)
        if node.target is torch._C._set_grad_enabled:
            self._grad_mode(bool(node.args[0]))
        elif node.target is torch.amp.autocast_mode._enter_autocast:
            given = ", ".join(_text_of_constant(arg) for arg in node.args)
            self.contexts.append(_Context(node.name, f"with torch.autocast({given}):"))
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            opened = node.args[0]
            self._close(opened.name if isinstance(opened, torch.fx.Node) else "")
        else:
            name = name_of(node.target)
            if name is None:
                raise NotCapturableError(f"a call of {node.target}, which has no name to import")
            root = name.partition(".")[0]
            if name not in _SPECIAL and root not in _UNNAMED:
                self.imports.add(name.rpartition(".")[0] if root != "operator" else root)
            self._add(node, _SPECIAL.get(name, name.removeprefix("builtins.")), node.args)

    def _grad_mode(self, is_enabled: bool) -> None:
        header = "with torch.enable_grad():" if is_enabled else "with torch.no_grad():"
        if self.contexts and self.contexts[-1].opened_by == "grad mode" and self.contexts[-1].header != header:
            self.contexts.pop()
        else:
            self.contexts.append(_Context("grad mode", header))

    def _close(self, opened_by: str) -> None:
        if not self.contexts or self.contexts[-1].opened_by != opened_by:
            raise NotCapturableError("regions of autocast and of grad modes that overlap")
        self.contexts.pop()

    def _add(self, node: torch.fx.Node, target: str, args: Sequence[Any]) -> None:
        operands = tuple(self._operand(arg) for arg in args)
        kwargs = tuple((key, self._operand(value)) for key, value in node.kwargs.items())
        results: tuple[str, ...] = ()
        if target != "setitem":
            results = (f"v{len(self._values)}",)
            self._values[node.name] = Ref(results[0])
        self._append(OpCall(target=target, args=operands, kwargs=kwargs, results=results))

    def _append(self, statement: Statement) -> None:
        for context in reversed(self.contexts):
            statement = Block(header=context.header, body=(statement,))
        self.statements.append(statement)

    def _operand(self, value: Any) -> Operand:
        match value:
            case torch.fx.Node():
                if value.name not in self._values:
                    raise NotCapturableError(f"a use of the result of {value.target}")
                return self._values[value.name]
            case None | bool() | int() | float() | complex() | str():
                return value
            case tuple() | list():
                kind = "list" if isinstance(value, list) else "tuple"
                return Items(tuple(self._operand(item) for item in value), kind)
            case dict() if all(isinstance(key, str) for key in value):
                return Entries(tuple((key, self._operand(item)) for key, item in value.items()))
            case slice():
                return self._slice(value)
            case _:
                return Expr(_text_of_constant(value))

    def _slice(self, value: slice) -> Operand:
        parts = (value.start, value.stop, value.step)
        if not any(isinstance(part, torch.fx.Node) for part in parts):
            return Expr(f"slice({', '.join(_text_of_constant(part) for part in parts)})")
        name = f"s{len(self.statements)}_{len(self._values)}"
        self._append(OpCall(target="slice", args=tuple(self._operand(part) for part in parts), results=(name,)))
        return Ref(name)


def _text_of_constant(value: Any) -> str:
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, complex, str, *_CONSTANTS)):
        return repr(value)
    raise NotCapturableError(f"a {type(value).__name__} as an argument")


def name_of(function: Callable[..., Any]) -> str | None:
    """The dotted name under which a program can import a function, public ones first; None if there is none."""
    short = getattr(function, "__name__", "")
    for space in _PUBLIC:
        if getattr(space, short, None) is function:
            return f"{space.__name__}.{short}"
    try:
        full = _get_qualified_name(function)
    except (AttributeError, RuntimeError, AssertionError):  # an object that is called, which has no name
        return None
    full = full if "." in full else f"builtins.{full}"
    full = full.replace("_operator.", "operator.", 1) if full.startswith("_operator.") else full
    if full.startswith((PROGRAM_MODULE, "__main__")):  # it exists in this process only
        return None
    return full if _found(full) is function else None


def _found(name: str) -> Any:
    """The object of a dotted name, or None."""
    parts = name.split(".")
    if parts[0] not in sys.modules:
        return None
    value: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        value = getattr(value, part, None)
    return value
