"""Mutations that change a graph's outputs: graphs that write to their inputs, and flat bases that are written back.

Counterpart: keep_inference_input_mutations of torch/_functorch/_aot_autograd/graph_capture_wrappers.py
Differs: a pass over the functional graph, or over the forward that a partitioner made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import storage_key
from refimpl.aot.analysis.metadata import (
    FlatWrite,
    ForwardOutput,
    Geometry,
    InputMutation,
    OutputInfo,
    OutputKind,
    ProgramAnalysis,
    ReplayStep,
)
from refimpl.functionalize import AliasGroup

Node = torch.fx.Node


def with_mutations_in_graph(
    graph_module: torch.fx.GraphModule, analysis: ProgramAnalysis, slots: list[Node | None], *, num_tokens: int = 0
) -> tuple[torch.fx.GraphModule, ProgramAnalysis]:
    """Let the graph copy new data into its inputs, instead of returning it. Changes of sizes and strides stay outside.

    slots: the placeholder of each slot; None for a slot that a flat base replaces. A result that is such an input is the input,
    so that no compiler computes it twice. num_tokens: how many of the graph's outputs are effect tokens, before those that the
    analysis counts.
    """
    kept = [
        (position, slots[position], info.mutation)
        for position, info in enumerate(analysis.inputs)
        if info.mutation is not None and slots[position] is not None and can_be_kept(info.mutation)
    ]
    if not kept:
        return graph_module, analysis
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    tokens: list[Any] = []
    returned: list[Any] = []
    for node in graph_module.graph.nodes:
        if node.op == "output":
            tokens = [copies[value] for value in node.args[0][:num_tokens]]
            returned = [copies.get(value, value) for value in node.args[0][num_tokens:]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = {info.position: info.source for info in analysis.outputs if info.kind is OutputKind.INPUT}
    for number, slot, mutation in kept:
        assert slot is not None
        value = returned[mutation.position]
        write = graph.create_node("call_function", torch.ops.aten.copy_.default, (copies[slot], value), name="copy_")
        write.meta = {**slot.meta, **{key: value.meta[key] for key in _PROVENANCE if key in value.meta}}
        returned = [write if inputs.get(i) == number and r is value else r for i, r in enumerate(returned)]
    gone = {mutation.position for _, _, mutation in kept}
    graph.output((*tokens, *(value for position, value in enumerate(returned) if position not in gone)))
    return torch.fx.GraphModule(graph_module, graph), without_kept(analysis, {position for position, _, _ in kept})


def without_kept(analysis: ProgramAnalysis, inputs: set[int]) -> ProgramAnalysis:
    """The analysis of a graph that does the mutations of these inputs itself, and does not return their new values.

    Its writes raise the version counter, also where those of the program do not (`.data`, statistics of a batch normalization).
    """
    pairs = [(i, info.mutation) for i, info in enumerate(analysis.inputs) if i in inputs]
    mutations = [(i, mutation) for i, mutation in pairs if mutation is not None]
    moved = _Moved({mutation.position for _, mutation in mutations}).analysis(analysis, inputs)
    return replace(moved, unnoticed_writes=tuple(i for i, mutation in mutations if not mutation.bumps_version))


_PROVENANCE = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom")


def can_be_kept(mutation: InputMutation) -> bool:
    """Whether the graph can do the write: it changes data alone, and autograd need not see it.

    `copy_` refuses a target that overlaps itself.
    """
    is_plain = mutation.geometry is None and not mutation.sets_storage and not mutation.detaches
    is_unseen = not mutation.requires_grad or not mutation.is_visible_to_autograd
    return mutation.writes_data and is_plain and is_unseen and not mutation.overlaps_itself


class _Moved:
    """Maps positions of forward outputs to those after the outputs at `gone` are removed."""

    def __init__(self, gone: set[int]) -> None:
        self.gone = gone

    def position(self, position: int) -> int:
        return position - sum(1 for g in self.gone if g < position)

    def analysis(self, analysis: ProgramAnalysis, kept_inputs: set[int]) -> ProgramAnalysis:
        return replace(
            analysis,
            inputs=tuple(
                replace(info, mutation=None)
                if i in kept_inputs or info.mutation is None
                else replace(info, mutation=self._mutation(info.mutation))
                for i, info in enumerate(analysis.inputs)
            ),
            outputs=tuple(self._output(info) for info in analysis.outputs),
            bases=tuple(map(self.position, analysis.bases)),
            differentiable=tuple(map(self.position, analysis.differentiable)),
            tangents=tuple(replace(tangent, position=self.position(tangent.position)) for tangent in analysis.tangents),
            refused=tuple((self.position(position), error) for position, error in analysis.refused),
            num_forward_outputs=analysis.num_forward_outputs - len(self.gone),
            argument_mutations=tuple((i, self._mutation(mutation)) for i, mutation in analysis.argument_mutations),
            owned=tuple(map(self.position, analysis.owned)),
            flat_writes=tuple(replace(w, position=self.position(w.position)) for w in analysis.flat_writes),
        )

    def _mutation(self, mutation: InputMutation) -> InputMutation:
        left = mutation.left_position
        return replace(
            mutation,
            position=self.position(mutation.position),
            left_position=None if left is None else self.position(left),
            placement=None if mutation.placement is None else self._output(mutation.placement),
            numbers=self._argument(mutation.numbers),
        )

    def _output(self, info: OutputInfo) -> OutputInfo:
        source = info.source
        if info.kind is OutputKind.VIEW_OF_INTERMEDIATE and source is not None:
            source = self.position(source)
        steps = tuple(self._step(step) for step in info.steps)
        return replace(info, position=self.position(info.position), source=source, steps=steps)

    def _step(self, step: ReplayStep) -> ReplayStep:
        keywords = tuple((name, self._argument(value)) for name, value in step.keywords)
        return replace(step, arguments=tuple(map(self._argument, step.arguments)), keywords=keywords)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, ForwardOutput):
            return ForwardOutput(self.position(value.position))
        return tuple(map(self._argument, value)) if isinstance(value, tuple) else value


_MOST_ADDRESSES = 65_536


def with_flat_writes(
    graph_module: torch.fx.GraphModule,
    analysis: ProgramAnalysis,
    replaced: Sequence[AliasGroup],
    slots: Sequence[Any],
) -> ProgramAnalysis:
    """Add the final value of a flat base to the forward outputs if the program writes to memory of it that no argument covers.

    slots: the real values. A base is left out if another slot is in its storage, because it lacks the writes to that slot. A base
    that the program enlarges covers the whole storage, and is always written.
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
