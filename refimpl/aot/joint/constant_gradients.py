"""Gradients that nothing is read for, as the zeros of sgn: which incoming gradients autograd gives them with. The graph does not
tell, and adds them to what is computed of others.

Counterpart: none
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refimpl.aot.analysis.history import steps_behind
from refimpl.aot.analysis.replay import has_custom_function
from refimpl.aot.joint.backward import IS_BACKWARD
from refimpl.aot.joint.provenance import step_number
from refimpl.aot.joint.sides import GIVEN_WITH, IS_GIVEN_FOR_SURE, is_tangent

_SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def note_constants(graph: torch.fx.Graph, outputs: Sequence[torch.Tensor]) -> None:
    """Note it for what is added to gradients of these outputs in the joint graph; to be called before provenance is copied."""
    of_tangents: set[torch.fx.Node] = set()
    constants: dict[torch.fx.Node, set[int | None]] = {}  # of the backward: numbers of the steps that make them
    summands: dict[torch.fx.Node, set[int | None]] = {}
    for node in graph.nodes:
        if is_tangent(node) or not of_tangents.isdisjoint(node.all_input_nodes):
            of_tangents.add(node)
            if node.target in _SUMS:
                summands.update((read, constants[read]) for read in node.all_input_nodes if read in constants)
        elif node.op == "call_function" and node.meta.get("partitioner_tag") == IS_BACKWARD:
            made = [constants[read] for read in node.all_input_nodes if read in constants]
            constants[node] = set().union(*made) if made else {step_number(node)}
    if not summands:
        return
    behind = [{step._sequence_nr() for step in steps_behind([output])} for output in outputs]
    is_sure = not any(has_custom_function(step, 1) for step in steps_behind(outputs))
    for node, steps in summands.items():
        with_all = [frozenset(i for i, numbers in enumerate(behind) if step in numbers) for step in steps]
        if all(with_all):
            node.meta[GIVEN_WITH] = frozenset().union(*with_all)
            node.meta[IS_GIVEN_FOR_SURE] = is_sure


def constants_behind(graph: torch.fx.Graph) -> dict[torch.fx.Node, frozenset[int]]:
    """Of every node of a backward graph: with which incoming gradients constants are given for sure that it is computed of."""
    behind: dict[torch.fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        own = node.meta[GIVEN_WITH] if node.meta.get(IS_GIVEN_FOR_SURE) else frozenset()
        behind[node] = own.union(*(behind[read] for read in node.all_input_nodes))
    return behind
