"""A tangent for every differentiable output, also for one that is an earlier output once more.

Counterpart: none by name; upstream traces such an output as two
Differs: around a compiled function a repeated output is one object with one gradient, and needs one tangent. Only the caller of
an exported joint graph passes a gradient for each.
"""

from __future__ import annotations

import torch

from refimpl.aot.analysis.records import OutputKind, ProgramAnalysis

_add = torch.ops.aten.add.Tensor


def add_tangents_of_repeated_outputs(graph: torch.fx.Graph, analysis: ProgramAnalysis) -> None:
    """Adds placeholders, and puts those of all tangents in the order of the outputs: `tangents_1`, ..."""
    outputs = analysis.outputs
    if not any(info.kind is OutputKind.REPEATED for info in outputs):
        return
    placeholders = graph.find_nodes(op="placeholder")
    first_op = placeholders[-1].next
    given = placeholders[len(placeholders) - len(analysis.differentiable) :]
    tangents = dict(zip(analysis.differentiable, given, strict=True))
    ordered: list[torch.fx.Node] = []
    sums: list[torch.fx.Node] = []
    totals = {node: node for node in given}  # what backward reads for a tangent
    for info in outputs:
        source = info if info.kind is not OutputKind.REPEATED or info.source is None else outputs[info.source]
        tangent = tangents.get(source.position)
        if tangent is None:
            continue
        if source is not info:
            with graph.inserting_before(first_op):
                second = graph.placeholder("tangents")
                total = graph.call_function(_add, (totals[tangent], second))
            second.meta, total.meta = dict(tangent.meta), dict(tangent.meta)
            totals[tangent].replace_all_uses_with(total, delete_user_cb=lambda user, total=total: user is not total)
            totals[tangent] = total
            sums.append(total)
            tangent = second
        ordered.append(tangent)
    for node in (*ordered, *(node for node in given if node not in ordered), *sums):
        first_op.prepend(node)
    for number, node in enumerate(graph.find_nodes(op="placeholder")[len(placeholders) - len(given) :], start=1):
        node.name = node.target = f"tangents_{number}"
