"""Joint graphs that keep the writes of the program, for callers that switch functionalization off.

Counterpart: disable_functionalization of torch/_functorch/_aot_autograd/graph_capture.py and graph_capture_wrappers.py
Differs: a program for which such a graph would give wrong results is functionalized all the same (`can_keep_writes`). Upstream
traces it without functionalization in every case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import PlainCodeGen
from refimpl.aot.analysis.inputs import storage_groups
from refimpl.aot.analysis.metadata import InputMutation
from refimpl.aot.in_graph_mutations import can_be_kept, without_kept
from refimpl.aot.joint.backward import writes_in_backward
from refimpl.aot.joint.repeated_draws import has_repeated_draws
from refimpl.aot.joint.trace import TracedProgram
from refimpl.functionalize.schemas import METADATA_OPS, RESIZE_OPS, SET_OPS, facts_of, is_mutating

Node = torch.fx.Node
_CLONE = torch.ops.aten.clone.default
_AS_STRIDED = torch.ops.aten.as_strided.default
_MOVES = frozenset((*METADATA_OPS, *RESIZE_OPS, *SET_OPS))


def can_keep_writes(traced: TracedProgram, slots: Sequence[Any], *, keeps_mutations: bool) -> bool:
    """Whether a graph with the program's own writes, divided where it was recorded, gives eager's results.

    slots: the values of the graph's inputs. keeps_mutations: the graph may write to the caller's tensors. Not if the memory or
    the geometry of a tensor changes, or if a backward writes and several results have gradients. Nor if an input that the graph
    has to clone shares memory with another or with itself, or may be read beyond its elements: a clone has memory of its own.
    """
    analysis, graph = traced.analysis, traced.graph_module.graph
    if not any(map(is_mutating, graph.nodes)) or traced.layout is not None:
        return False
    if analysis.backward_writes or analysis.argument_mutations or has_repeated_draws(graph):
        return False
    if any(node.target in _MOVES for node in graph.nodes):
        return False
    if len(traced.example_tangents) > 1 and writes_in_backward(graph):
        return False
    mutations = _mutations(traced)
    if any(m.geometry is not None or m.sets_storage or m.detaches for m in mutations.values()):
        return False
    cloned = _cloned(mutations, keeps_mutations=keeps_mutations)
    if any(mutations[i].overlaps_itself for i in cloned):
        return False
    shared = {position for group in storage_groups(slots) for position in group}
    return not cloned or (shared.isdisjoint(cloned) and not graph.find_nodes(op="call_function", target=_AS_STRIDED))


def with_own_writes(traced: TracedProgram, *, keeps_mutations: bool) -> TracedProgram:
    """The trace with a graph that writes to the caller's tensors where it may, and else to clones, which it returns."""
    mutations = _mutations(traced)
    cloned = _cloned(mutations, keeps_mutations=keeps_mutations)
    kept = set(mutations) - cloned
    given = traced.graph_module.graph
    placeholders = given.find_nodes(op="placeholder")
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in given.nodes:
        if node.op == "output":
            gone = {mutations[position].position for position in kept}
            graph.output(tuple([copies.get(r, r) for i, r in enumerate(node.args[0]) if i not in gone]))
            continue
        if node is placeholders[-1].next:
            for position in sorted(cloned):
                slot = copies[placeholders[position]]
                copies[placeholders[position]] = graph.call_function(_CLONE, (slot,))
                copies[placeholders[position]].meta = dict(slot.meta)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    _erase_unused(graph)
    graph.set_codegen(PlainCodeGen())
    return replace(
        traced,
        graph_module=torch.fx.GraphModule(traced.graph_module, graph),
        analysis=without_kept(traced.analysis, kept),
    )


def _mutations(traced: TracedProgram) -> dict[int, InputMutation]:
    return {i: info.mutation for i, info in enumerate(traced.analysis.inputs) if info.mutation is not None}


def _cloned(mutations: dict[int, InputMutation], *, keeps_mutations: bool) -> set[int]:
    """The inputs whose new values the caller has to write: autograd has to see the write, or not even to notice it."""
    kept = {i for i, m in mutations.items() if keeps_mutations and can_be_kept(m) and m.bumps_version}
    return set(mutations) - kept


def _erase_unused(graph: torch.fx.Graph) -> None:
    """Erase the calls that nothing reads, unless they write, have another effect, or advance a generator."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op not in ("call_function", "get_attr"):
            continue
        facts = facts_of(node.target) if node.op == "call_function" else None
        if facts is None or not (facts.is_effectful or facts.is_random):
            graph.erase_node(node)
