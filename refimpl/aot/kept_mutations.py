"""Writes to inputs as the last ops of an inference graph, where autograd does not have to see them.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py apply_in_graph_mutations; functional_utils.py
_check_if_mutation_can_be_in_graph
Differs: only inputs without gradients; a write to one that has them, under no_grad or through `.data`, stays outside, where its
version counter is treated as eager does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refimpl.aot.analysis import InputInfo


def may_be_in_graph(info: InputInfo) -> bool:
    """Whether the input is written to, keeps its geometry, and has no gradient before or after."""
    mutation = info.mutation
    if mutation is None or not mutation.writes_data or not mutation.bumps_version:
        return False
    keeps_geometry = mutation.geometry is None and not mutation.sets_storage and not mutation.resizes
    return keeps_geometry and not info.requires_grad and not mutation.requires_grad


def keep_mutations(graph: torch.fx.Graph, inputs: Sequence[InputInfo]) -> frozenset[int]:
    """Appends `aten.copy_` for each input that may be written inside of the graph; says which. Outputs are as they were.

    The graph has a placeholder for every input, in order.
    """
    kept = frozenset(i for i, info in enumerate(inputs) if may_be_in_graph(info))
    placeholders = graph.find_nodes(op="placeholder")
    output = graph.output_node()
    returned = list(output.args[0])  # type: ignore[call-overload]
    with graph.inserting_before(output):
        for position in sorted(kept):
            mutation = inputs[position].mutation
            assert mutation is not None
            value = returned[mutation.position]
            copy = graph.call_function(torch.ops.aten.copy_.default, (placeholders[position], value))
            copy.meta = dict(value.meta)
    return kept
