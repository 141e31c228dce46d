"""Memory that a program writes to and that no argument shows: the whole flat base is written back.

Counterpart: none; torch's AOT autograd does not see such writes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import storage_key
from refimpl.aot.analysis.records import FlatWrite, Geometry, ProgramAnalysis
from refimpl.functionalize import AliasGroup

_MOST_ADDRESSES = 65_536


def with_flat_writes(
    graph_module: torch.fx.GraphModule,
    analysis: ProgramAnalysis,
    replaced: Sequence[AliasGroup],
    slots: Sequence[Any],
) -> ProgramAnalysis:
    """Adds the final values of flat bases to the forward outputs of the graph, where writes to the arguments leave something out.

    slots: the real values. A base in whose storage another slot lies is left alone: it does not know what is written there.
    A base that the program enlarges knows the whole storage, and is always written.
    """
    geometries = [Geometry.of(slot) if isinstance(slot, torch.Tensor) else None for slot in slots]
    storages = [storage_key(s) if g is not None else None for s, g in zip(slots, geometries, strict=True)]
    output = graph_module.graph.output_node()
    returned: Any = list(output.args[0])  # type: ignore[arg-type]
    writes: list[FlatWrite] = []
    for group in replaced:
        if group.value is None or (group.value.op == "placeholder" and not group.enlarges):
            continue
        others = {s for i, s in enumerate(storages) if i not in group.members}
        is_alone = storages[group.members[0]] not in others
        if group.enlarges or (is_alone and _leaves_out(group, analysis, geometries)):
            position = analysis.num_forward_outputs + len(writes)
            returned.insert(position, group.value)
            writes.append(FlatWrite(group=group, position=position))
    if not writes:
        return analysis
    output.args = (tuple(returned),)
    graph_module.recompile()
    count = analysis.num_forward_outputs + len(writes)
    return replace(analysis, num_forward_outputs=count, flat_writes=tuple(writes))


def _leaves_out(group: AliasGroup, analysis: ProgramAnalysis, geometries: Sequence[Geometry | None]) -> bool:
    if type(group.numel) is not int or type(group.offset) is not int:
        return False
    if group.numel > _MOST_ADDRESSES:
        return True
    written = [m for m in group.members if (found := analysis.inputs[m].mutation) is not None and found.writes_data]
    covered: set[int] = set()
    for member in written:
        geometry = geometries[member]
        if geometry is None or any(type(n) is not int for n in (*geometry.size, *geometry.stride, geometry.offset)):
            return False
        covered |= geometry.places()
    return not covered.issuperset(range(group.offset, group.offset + group.numel))
