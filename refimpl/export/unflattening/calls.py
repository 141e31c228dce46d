"""The tree of module calls in a graph, with the nodes of each call.

Counterpart: torch/export/unflatten.py _ModuleFrame
Differs: the tree is made before any graph. An assert of an outer module among the nodes of a call becomes a node of this call,
and does not divide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import fx

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.export.module_call_graph import ModuleCallSignature
from refimpl.export.module_stacks import ROOT_KEY


class Scope(NamedTuple):
    """An entry of `nn_module_stack`: the call with this key of the module at the path."""

    key: str
    path: str
    type_name: str

    @property
    def number(self) -> int:
        """The number of the call among those of this path."""
        own = f"{ROOT_KEY}{self.path}"  # a path may have an "@" itself
        key = self.key.removeprefix(own) if self.key.startswith(own) else self.key
        number = key.rpartition("@")[2] if "@" in key else ""
        return int(number) if number.isdigit() else 0


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module. `items` are its nodes and inner calls, in order."""

    scope: Scope
    parent: Call | None
    part: int = 0
    """If nodes of another call are between its nodes, the call is divided; the index of the part."""
    signature: ModuleCallSignature | None = None
    """The original signature, if it is to be preserved."""
    items: list[fx.Node | Call] = field(default_factory=list)
    results: dict[str, fx.Node] = field(default_factory=dict)
    """Nodes of this call that replace outputs of the signature, by name."""
    arguments: dict[str, fx.Node] = field(default_factory=dict)
    """Nodes of the caller that replace inputs of the signature, by name."""

    @property
    def path(self) -> str:
        """The full name of the module."""
        return self.scope.path

    @property
    def name(self) -> str:
        """The name of the call: "path", or "path@1"."""
        number = self.scope.number + self.part
        return f"{self.path}@{number}" if number else self.path

    def chain(self) -> Iterator[Call]:
        """This call and its callers, innermost first."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent

    def nodes(self) -> Iterator[fx.Node]:
        """All nodes in order, including those of inner calls."""
        for item in self.items:
            if isinstance(item, Call):
                yield from item.nodes()
            else:
                yield item

    def calls(self) -> Iterator[Call]:
        """All inner calls, each before its own inner calls."""
        for item in self.items:
            if isinstance(item, Call):
                yield item
                yield from item.calls()


def call_tree(nodes: Sequence[fx.Node], root_type: str, signatures: Mapping[str, ModuleCallSignature]) -> Call:
    """The call of the whole program. signatures: those to preserve, by the names of their calls."""
    root = Call(Scope(ROOT_KEY, "", root_type), None)
    stacks = [_scopes(node, signatures) for node in nodes]
    last_of: dict[tuple[Scope, ...], int] = {}
    for index, stack in enumerate(stacks):
        for depth in range(1, len(stack) + 1):
            last_of[stack[:depth]] = index
    parts: dict[str, int] = {}
    open_calls: list[Call] = []

    def opened() -> tuple[Scope, ...]:
        return tuple(call.scope for call in open_calls)

    for index, (node, stack) in enumerate(zip(nodes, stacks, strict=True)):
        while open_calls and stack[: len(open_calls)] != opened():
            is_outside = opened()[: len(stack)] == stack
            if is_outside and last_of[opened()] > index and _is_anywhere(node):
                break  # more nodes of the call follow, so this node joins it
            open_calls.pop()
        for scope in stack[len(open_calls) :]:
            around = open_calls[-1] if open_calls else root
            call = Call(scope, around)
            call.signature = signatures.get(call.name)
            call.part = parts.get(scope.key, 0)
            parts[scope.key] = call.part + 1
            around.items.append(call)
            open_calls.append(call)
        (open_calls[-1] if open_calls else root).items.append(node)
    return root


def _is_anywhere(node: fx.Node) -> bool:
    """Whether the node has no result, or a symbolic number: then it may belong to any call."""
    return isinstance(node.meta.get("val"), (*SYMBOLIC_TYPES, type(None)))


def _scopes(node: fx.Node, signatures: Mapping[str, ModuleCallSignature]) -> tuple[Scope, ...]:
    """The calls of a node, outermost first, without the root's. The call of a module that is no submodule of its caller is left
    out: its nodes are the caller's."""
    found: list[Scope] = []
    around = ""
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        if path and (not around or path.startswith(f"{around}.")):
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            found.append(Scope(str(key), path, name))
            around = path
    return tuple(found)
