"""Facts about an op from its schema and tags: whether it is random or effectful, and which argument it is a view of.

Counterpart: torch/fx/node.py Node.is_impure; the tables of torch/_functorch/compile_utils.py rand_ops
Differs: schemas and tags decide, with short lists of exceptions, so the rules hold for ops of other libraries too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_FUNCTIONS, HigherOrderOperator, OpOverload, registered_effect

_RANDOM = torch.Tag.nondeterministic_seeded
# Random ops that take seed and offset as arguments: two runs return the same numbers.
_FUNCTIONAL_RANDOM = frozenset({"rngprims::philox_rand"})
# Ops that return a view, although their schema has no alias annotation.
_UNANNOTATED_VIEWS = frozenset({"aten::_unsafe_view"})
# Libraries whose ops have effects other than on tensors, such as profiler ranges and collectives, or wait for these.
_EFFECTFUL_LIBRARIES = frozenset({"profiler", "_c10d_functional", "c10d_functional", "c10d", "_dist"})
_PURE_PYTHON_MODULES = frozenset({"_operator", "operator", "math"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """Facts about the target of a call node. `viewed` is the position and name of the argument that the result is a view of."""

    name: str  # "aten::add", without the overload; for a Python function, its name
    is_random: bool
    is_effectful: bool
    is_mutable: bool
    viewed: tuple[int, str] | None


@functools.cache
def facts_of(target: Any) -> OpFacts:
    """Facts about an overload, a higher-order operator, or a Python function."""
    if isinstance(target, OpOverload):
        return _facts_of_overload(target)
    if isinstance(target, HigherOrderOperator):
        # The functions it calls are not inspected: they may have any effect.
        return OpFacts(name=target.name(), is_random=False, is_effectful=True, is_mutable=False, viewed=None)
    return _facts_of_function(target)


def _facts_of_overload(target: OpOverload) -> OpFacts:
    schema = target._schema
    name = schema.name
    is_random = _RANDOM in target.tags and name not in _FUNCTIONAL_RANDOM
    is_mutable = schema.is_mutable
    is_effectful = is_mutable or not schema.returns or target.namespace in _EFFECTFUL_LIBRARIES
    is_effectful = is_effectful or registered_effect(target) is not None
    viewed: tuple[int, str] | None = None
    if not is_mutable:
        if name in _UNANNOTATED_VIEWS:
            viewed = (0, schema.arguments[0].name)
        elif any(result.alias_info is not None for result in schema.returns):
            annotated = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None]
            viewed = annotated[0] if annotated else None
    return OpFacts(name=name, is_random=is_random, is_effectful=is_effectful, is_mutable=is_mutable, viewed=viewed)


def _facts_of_function(target: Any) -> OpFacts:
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", None)
    if target is operator.getitem:
        return OpFacts(name="getitem", is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    if module in _PURE_PYTHON_MODULES or target in (min, max, abs, round, int, float, bool, math.floor):
        return OpFacts(name=name, is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    if target in SYMBOLIC_FUNCTIONS:
        return OpFacts(name=name, is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    packet = getattr(torch.ops.aten, name, None) if _is_torch_builtin(target) else None
    if packet is not None and not name.endswith("_"):
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        return OpFacts(
            name=f"aten::{name}",
            is_random=any(_RANDOM in overload.tags for overload in overloads),
            is_effectful=False,
            is_mutable=False,
            viewed=(0, "self")
            if all(_facts_of_overload(o).viewed for o in overloads if not o._schema.is_mutable)
            else None,
        )
    return OpFacts(name=name, is_random=False, is_effectful=True, is_mutable=True, viewed=None)


def _is_torch_builtin(target: Any) -> bool:
    """Whether this is a C++ function such as torch.cos, which graphs of torch functions call instead of overloads."""
    return type(target) is type(len) and (
        getattr(target, "__module__", None) in (None, "torch") or "torch" in str(getattr(target, "__module__", ""))
    )


def viewed_node(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that this one is a view of, by the op's schema. For an item of a tuple of views it is the tuple's node."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        parent = node.args[0]
        is_view = isinstance(parent, torch.fx.Node) and viewed_node(parent) is not None
        return parent if is_view and isinstance(parent, torch.fx.Node) else None
    viewed = facts_of(node.target).viewed
    if viewed is None:
        return None
    position, name = viewed
    source = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    return source if isinstance(source, torch.fx.Node) else None


def memory_owners(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """Map each node to the node that allocated its memory. Nodes must come in program order."""
    owners: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        source = viewed_node(node)
        owners[node] = node if source is None else owners.get(source, source)
    return owners
