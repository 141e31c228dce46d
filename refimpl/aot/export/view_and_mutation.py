"""Mutations and aliases of a program, in records with the names and fields of upstream's metadata.

Counterpart: torch/_functorch/_aot_autograd/schemas.py ViewAndMutationMeta, InputAliasInfo, OutputAliasInfo, MutationType,
OutputType, PlainTensorMeta, SubclassCreationMeta; collect_metadata_analysis.py run_functionalized_fw_and_collect_metadata
Differs: these records are only for callers; refimpl itself uses refimpl.aot.analysis.metadata. They have no fields for
wrapper subclasses among inputs and tangents, tokens and random states.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.aot.analysis.metadata import InputInfo, OutputInfo, OutputKind
from refimpl.aot.analysis.subclasses import Layout
from refimpl.aot.functional_program import ProgramRequest, functional_program
from refimpl.aot.in_graph_mutations import can_be_kept
from refimpl.aot.joint.trace import TracedProgram
from refimpl.aot.options import AOTConfig


class MutationType(enum.Enum):
    """What applies the mutation of an input: nothing (there is none), the graph itself, or its caller."""

    NOT_MUTATED = 1
    MUTATED_IN_GRAPH = 2
    MUTATED_OUT_GRAPH = 3


class OutputType(enum.Enum):
    """Which memory an output uses: its own, or that of an input or intermediate."""

    non_alias = 1
    alias_of_input = 2
    is_input = 3
    alias_of_intermediate_save_as_output = 4
    alias_of_intermediate = 5
    alias_of_intermediate_base_is_user_output = 6
    unsafe_view_alias = 7
    custom_function_view = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAliasInfo:
    """The mutation of one input. The fields `mutations_...` are False if there is none."""

    is_leaf: bool = True
    mutates_data: bool = False
    mutates_metadata: bool = False
    mutations_hidden_from_autograd: bool = False
    mutations_under_no_grad_or_inference_mode: bool = False
    mutates_storage_metadata: bool = False
    requires_grad: bool = False
    keep_input_mutations: bool = False

    @property
    def mutation_type(self) -> MutationType:
        """`keep_input_mutations` is set for the inputs whose mutation the graph does itself."""
        if not self.mutates_data and not self.mutates_metadata:
            return MutationType.NOT_MUTATED
        return MutationType.MUTATED_IN_GRAPH if self.keep_input_mutations else MutationType.MUTATED_OUT_GRAPH


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputAliasInfo:
    """The memory of one output. `base_idx` is the position of the input, base or output that it is a view of.

    A repeated output has the record of the first.
    """

    output_type: OutputType
    raw_type: type
    base_idx: int | None = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTensorMeta:
    """An output of the graph that is no wrapper subclass; its position among the outputs."""

    unwrapped_idx: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubclassCreationMeta:
    """A wrapper subclass, which the caller makes of `arg_count` outputs of the graph, from the given position on."""

    flat_tensor_start_idx: int
    arg_count: int
    original_subclass_type: type[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewAndMutationMeta:
    """Mutations and aliases of a program. Inputs and outputs have the order of the flat function's."""

    input_info: tuple[InputAliasInfo, ...]
    output_info: tuple[OutputAliasInfo, ...]
    num_intermediate_bases: int
    keep_input_mutations: bool
    traced_tangents: tuple[Any, ...]
    subclass_fw_graph_out_meta: tuple[PlainTensorMeta | SubclassCreationMeta, ...] = ()
    """Of the updated inputs that the graph returns, then of the results, then of the bases of views."""

    @property
    def mutated_inp_runtime_indices(self) -> tuple[int, ...]:
        """Positions of inputs that the graph's caller has to update."""
        infos = enumerate(self.input_info)
        return tuple(i for i, info in infos if info.mutation_type is MutationType.MUTATED_OUT_GRAPH)

    @property
    def num_mutated_inp_runtime_indices(self) -> int:
        """How many leading outputs of the graph are updated inputs."""
        return len(self.mutated_inp_runtime_indices)

    @property
    def num_outputs(self) -> int:
        """How many outputs the flat function has."""
        return len(self.output_info)


def view_and_mutation_meta(traced: TracedProgram, *, keep_input_mutations: bool = False) -> ViewAndMutationMeta:
    """The records for a traced program."""
    analysis = traced.analysis
    with_base: set[int | None] = set()
    first = analysis.outputs[0].position if analysis.outputs else 0
    returned = list(traced.graph_module.graph.output_node().args[0])  # type: ignore[call-overload]

    def output(info: OutputInfo) -> OutputAliasInfo:
        if info.kind is OutputKind.REPEATED:
            assert info.source is not None
            return output(analysis.outputs[info.source])
        kind, base = _output_type(info, analysis.bases, first)
        if kind is OutputType.alias_of_intermediate_save_as_output and base in with_base:
            kind = OutputType.alias_of_intermediate  # the first view has brought the base with it
        with_base.add(base)
        node = returned[info.position]
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
        raw_type = torch.Tensor if isinstance(value, torch.Tensor) else type(value)
        return OutputAliasInfo(output_type=kind, raw_type=raw_type, base_idx=base, requires_grad=info.requires_grad)

    inputs = tuple([_input(info, keep_input_mutations) for info in analysis.inputs])
    updated = [
        info.mutation.position
        for info, found in zip(analysis.inputs, inputs, strict=True)
        if info.mutation is not None and found.mutation_type is MutationType.MUTATED_OUT_GRAPH
    ]
    positions = [*updated, *(info.position for info in analysis.outputs), *analysis.bases]
    return ViewAndMutationMeta(
        input_info=inputs,
        output_info=tuple(map(output, analysis.outputs)),
        num_intermediate_bases=len(analysis.bases),
        keep_input_mutations=keep_input_mutations,
        traced_tangents=tuple(traced.example_tangents),
        subclass_fw_graph_out_meta=_graph_outputs(
            [None if traced.layout is None else traced.layout.outputs[position] for position in positions]
        ),
    )


def _graph_outputs(layouts: Sequence[Layout]) -> tuple[PlainTensorMeta | SubclassCreationMeta, ...]:
    """The records of outputs of these layouts: a wrapper subclass takes the place of its dense tensors."""
    found: list[PlainTensorMeta | SubclassCreationMeta] = []
    first = 0
    for layout in layouts:
        if layout is None:
            found.append(PlainTensorMeta(unwrapped_idx=first))
            first += 1
            continue
        found.append(
            SubclassCreationMeta(
                flat_tensor_start_idx=first, arg_count=layout.count, original_subclass_type=layout.kind
            )
        )
        first += layout.count
    return tuple(found)


def _input(info: InputInfo, keep_input_mutations: bool) -> InputAliasInfo:
    mutation = info.mutation
    if mutation is None:
        return InputAliasInfo(
            is_leaf=info.is_leaf, requires_grad=info.requires_grad, keep_input_mutations=keep_input_mutations
        )
    is_hidden = mutation.writes_data and not mutation.bumps_version
    is_unseen = mutation.writes_data and not is_hidden and not mutation.is_visible_to_autograd and info.requires_grad
    return InputAliasInfo(
        is_leaf=info.is_leaf,
        mutates_data=mutation.writes_data,
        mutates_metadata=mutation.geometry is not None or mutation.sets_storage,
        mutations_hidden_from_autograd=is_hidden,
        mutations_under_no_grad_or_inference_mode=is_unseen,
        mutates_storage_metadata=mutation.sets_storage,
        requires_grad=info.requires_grad,
        keep_input_mutations=keep_input_mutations and can_be_kept(mutation),
    )


def _output_type(info: OutputInfo, bases: tuple[int, ...], first_output: int) -> tuple[OutputType, int | None]:
    source = info.source
    match info.kind:
        case OutputKind.INPUT:
            return OutputType.is_input, source
        case OutputKind.VIEW_OF_INPUT if info.is_put and info.requires_grad:
            return OutputType.custom_function_view, None  # views it by a Function, whose backward autograd has to call
        case OutputKind.VIEW_OF_INPUT:
            return OutputType.alias_of_input, source
        case OutputKind.VIEW_OF_INTERMEDIATE if not info.requires_grad:
            return OutputType.non_alias, None  # for upstream: refimpl makes it again of its base all the same
        case OutputKind.VIEW_OF_INTERMEDIATE if source in bases:
            return OutputType.alias_of_intermediate_save_as_output, bases.index(source)
        case OutputKind.VIEW_OF_INTERMEDIATE:
            assert source is not None
            return OutputType.alias_of_intermediate_base_is_user_output, source - first_output
        case _ if info.steps and info.requires_grad:
            return OutputType.unsafe_view_alias, None  # the only view of an intermediate
        case _:
            return OutputType.non_alias, None


def run_functionalized_fw_and_collect_metadata(
    f: Callable[..., Any],
    *,
    flat_args_descs: Any = None,
    keep_input_mutations: bool,
    static_input_indices: list[int] | None = None,
    pre_dispatch: bool = False,
) -> Callable[..., ViewAndMutationMeta]:
    """A function that takes the flat arguments of `f`, traces `f`, and returns its mutations and aliases.

    `f` returns a flat sequence. `flat_args_descs` and `static_input_indices` do not change the result.
    """
    config = AOTConfig(pre_dispatch=pre_dispatch, is_export=True)

    def inner(*flat_args: Any) -> ViewAndMutationMeta:
        seen: list[TracedProgram] = []
        functional_program(ProgramRequest(function=f, args=flat_args, config=config, check=seen.append))
        return view_and_mutation_meta(seen[0], keep_input_mutations=keep_input_mutations)

    return inner
