"""Which call of which module each node of a graph belongs to, as a tree.

Counterpart: torch/export/unflatten.py _ModuleFrame
Differs: the tree is made first, and graphs of it afterwards. An assertion of an outer module in the middle of a call, where its
numbers are known, joins the call, in place of dividing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import fx

from refimpl.export.module_call_graph import ModuleCallSignature
from refimpl.export.module_stacks import ROOT_KEY


class Scope(NamedTuple):
    """An entry of `nn_module_stack`: a call, which is known by its key, of the module at the path."""

    key: str
    path: str
    type_name: str

    @property
    def number(self) -> int:
        """Of the call, among those by this path."""
        own = f"{ROOT_KEY}{self.path}"  # a path may have an "@" itself
        key = self.key.removeprefix(own) if self.key.startswith(own) else self.key
        number = key.rpartition("@")[2] if "@" in key else ""
        return int(number) if number.isdigit() else 0


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module. `items` are what happens in it, in order."""

    scope: Scope
    parent: Call | None
    part: int = 0
    """Calls whose nodes are apart, with those of another call between them, are in parts."""
    signature: ModuleCallSignature | None = None
    """Where inputs and outputs are to be those of the original."""
    items: list[fx.Node | Call] = field(default_factory=list)
    results: dict[str, fx.Node] = field(default_factory=dict)
    """Nodes of its own for some names of the signature's outputs."""
    arguments: dict[str, fx.Node] = field(default_factory=dict)
    """Nodes of its caller's for some names of the signature's inputs."""

    @property
    def path(self) -> str:
        """The full name of the module."""
        return self.scope.path

    @property
    def name(self) -> str:
        """Of the call: "path", or "path@1"."""
        number = self.scope.number + self.part
        return f"{self.path}@{number}" if number else self.path

    def chain(self) -> Iterator[Call]:
        """This call and those around it."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent

    def nodes(self) -> Iterator[fx.Node]:
        """In order, those of inner calls included."""
        for item in self.items:
            if isinstance(item, Call):
                yield from item.nodes()
            else:
                yield item

    def calls(self) -> Iterator[Call]:
        """Inner ones, each before those inside of it."""
        for item in self.items:
            if isinstance(item, Call):
                yield item
                yield from item.calls()


def call_tree(nodes: Sequence[fx.Node], root_type: str, signatures: Mapping[str, ModuleCallSignature]) -> Call:
    """The call of the whole program. signatures: by names of calls, of those that are to keep theirs."""
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
                break  # the call goes on: the node joins it
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
    """Whether what it computes is a number, or nothing."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, type(None)))


def _scopes(node: fx.Node, signatures: Mapping[str, ModuleCallSignature]) -> tuple[Scope, ...]:
    """The calls a node is in, outermost first, without the root's. A module that is no part of its caller has none: its nodes are
    the caller's."""
    found: list[Scope] = []
    around = ""
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        if path and (not around or path.startswith(f"{around}.")):
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            found.append(Scope(str(key), path, name))
            around = path
    return tuple(found)
