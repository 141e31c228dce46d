"""Common subexpression elimination: it finds calls of a graph that compute the same value as an earlier call.

Counterpart: torch/_functorch/compile_utils.py fx_graph_cse
Differs: a value whose memory is written to is never merged, where upstream only checks for a write between the two calls; random
ops are known by their tags; -0.0 and 0.0 are two constants.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.functionalize.schemas import facts_of, memory_owners

# How the names of ops begin whose values are undefined, and creating them costs nothing.
_UNINITIALISED = ("aten::empty", "aten::new_empty")

Merges = dict[torch.fx.Node, torch.fx.Node]
MayMerge = Callable[[torch.fx.Node, torch.fx.Node], bool]


def fx_graph_cse(fx_g: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of the graph without common subexpressions. The remaining nodes keep their names and meta."""
    merges = equivalent_nodes(fx_g)
    new_graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in fx_g.nodes:
        kept = merges.get(node)
        copies[node] = copies[kept] if kept is not None else new_graph.node_copy(node, copies.__getitem__)
    return new_graph


def equivalent_nodes(graph: torch.fx.Graph, may_merge: MayMerge | None = None) -> Merges:
    """Every call that computes the same value as an earlier call, with that call. `may_merge(earlier, later)` can forbid it.

    Not merged: random and effectful calls; values whose memory the graph returns or writes to, because the caller could tell them
    apart; reads before and after a write.
    """
    merges: Merges = {}
    seen: dict[tuple[Any, ...], torch.fx.Node] = {}
    owners = memory_owners(graph.nodes)
    distinct = _memory_of_its_own(graph, owners)
    returned = {node for output in graph.nodes if output.op == "output" for node in output.all_input_nodes}
    for node in graph.nodes:
        if node.op != "call_function" or node in returned:
            continue
        facts = facts_of(node.target)
        if facts.is_mutable:
            seen.clear()  # a read after the write may give another value
        if facts.is_random or facts.is_effectful or facts.name.startswith(_UNINITIALISED) or owners[node] in distinct:
            continue
        key = (node.target, _key_of(node.args, merges), _key_of(node.kwargs, merges) if node.kwargs else None)
        earlier = seen.setdefault(key, node)
        if earlier is not node and (may_merge is None or may_merge(earlier, node)):
            merges[node] = earlier
    return merges


def _memory_of_its_own(graph: torch.fx.Graph, owners: dict[torch.fx.Node, torch.fx.Node]) -> set[torch.fx.Node]:
    """Owners of memory that the graph returns or writes to, without inputs: equal views of an input share its memory anyway."""
    distinct: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            distinct.update(owners[returned] for returned in node.all_input_nodes)
        elif node.op == "call_function" and facts_of(node.target).is_mutable:
            distinct.update(owners[argument] for argument in node.all_input_nodes)
            distinct.add(node)
    return {node for owner in distinct if owner.op != "placeholder" for node in (owner, *_parents_of_items(owner))}


def _parents_of_items(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The calls of which the node is a result by `getitem`: merging them would merge the node."""
    parents: list[torch.fx.Node] = []
    while node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
        parents.append(node)
    return parents


def _key_of(value: Any, merges: Merges) -> Any:
    """A hashable value, equal for equal arguments. 1, 1.0 and True are three values, as are 0.0 and -0.0."""
    kind = type(value)
    if kind is torch.fx.Node:
        return merges.get(value, value)
    if kind is int or kind is str or value is None:
        return value if kind is not int else (int, value)
    if kind is float:
        return (float, value.hex())
    if kind is bool:
        return (bool, value)
    if kind is complex:
        return (complex, value.real.hex(), value.imag.hex())
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple, *[_key_of(v, merges) for v in value])
    if isinstance(value, dict):
        return (dict, *[(k, _key_of(v, merges)) for k, v in value.items()])
    if isinstance(value, slice):
        return (slice, *[_key_of(v, merges) for v in (value.start, value.stop, value.step)])
    if isinstance(value, SYMBOLIC_TYPES):
        return (kind, id(value.node))
    try:
        hash(value)
    except TypeError:
        return (kind, id(value))
    return (kind, value)
