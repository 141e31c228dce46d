"""A program as one functional graph: traced with its backward, then functionalized.

Counterpart: torch/_functorch/_aot_autograd/graph_compile.py aot_stage1_graph_capture
Differs: the same trace tells which memory is written and aliased; upstream runs the program once more to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from refimpl._torch import (
    BRANCHES_MAY_WRITE,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    leaving_transforms,
)
from refimpl.aot.analysis.fake_arguments import fake_mode_for, fake_slots
from refimpl.aot.analysis.inputs import InputPlan, alias_groups, base_of, plan_for, storage_groups
from refimpl.aot.analysis.metadata import InputMutation, NeedsMore, ProgramAnalysis, TraceNeeds
from refimpl.aot.analysis.subclasses import ProgramLayout, dense_count
from refimpl.aot.in_graph_mutations import with_flat_writes
from refimpl.aot.joint.gradient_dependences import gradient_dependences, gradient_histories
from refimpl.aot.joint.repeated_draws import merge_repeated_draws
from refimpl.aot.joint.trace import FlatFunction, JointOptions, TracedProgram, TraceInputs, trace_program
from refimpl.aot.options import AOTConfig, current_settings
from refimpl.aot.recorded_writes import can_keep_writes, with_own_writes
from refimpl.aot.rng import RandomStates, functionalize_random
from refimpl.errors import RefimplError, UnsupportedByRefimpl
from refimpl.functionalize import AliasGroup, AliasMap, SymbolicMemory, functionalize_graph
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.metadata import note
from refimpl.trace.options import TraceOptions

_RAISED_FOR_SYMBOLS = (RuntimeError, ValueError, UnsupportedOperatorException)
_AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """A flat function and the arguments that it is compiled or exported for.

    plain: the real tensors and numbers for fake arguments; None if the arguments are real, or if nothing real is known.
    wants_backward: whether gradients are traced; None to trace them if any result requires grad.
    check: called with the first trace, in which every argument has a placeholder. Its errors are not caught.
    graph: a graph module whose run is all that `function` does. It takes its parameters and buffers, then the other arguments.
    """

    function: FlatFunction
    args: Sequence[Any]
    config: AOTConfig
    plain: Sequence[Any] | None = None
    wants_backward: bool | None = None
    check: Callable[[TracedProgram], None] | None = None
    is_specialized: bool = False
    graph: torch.fx.GraphModule | None = None

    @property
    def real_args(self) -> Sequence[Any] | None:
        """The real arguments; None if only fake ones are known."""
        if self.plain is None and not any(isinstance(arg, FakeTensor) for arg in self.args):
            return self.args
        return self.plain

    def for_these_sizes(self) -> ProgramRequest | None:
        """The request with static sizes, those of the real arguments; None if these are unknown, or sizes are static already."""
        if not self.config.dynamic_shapes or self.real_args is None:
            return None
        static = replace(self.config, dynamic_shapes=False)
        return replace(self, args=self.real_args, config=static, plain=None, check=None, is_specialized=True)


class ProgramFacts(Protocol):
    """What is compiled, wrapped and guarded by, besides the graphs: facts of a FunctionalProgram, or of one that was kept in a
    file."""

    @property
    def analysis(self) -> ProgramAnalysis:
        """The analysis of the trace."""
        ...

    @property
    def plan(self) -> InputPlan:
        """Which arguments have placeholders."""
        ...

    @property
    def layout(self) -> ProgramLayout | None:
        """The layout of wrapper subclasses; None if there are none."""
        ...

    @property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """Tensors of closures and globals, whose placeholders follow the plan's slots."""
        ...

    @property
    def example_tangents(self) -> tuple[Any, ...]:
        """The fake tangents of the trace."""
        ...

    @property
    def num_dense_outputs(self) -> int:
        """The number of outputs of the forward graph."""
        ...

    @property
    def replaced(self) -> tuple[AliasGroup, ...]:
        """Slots that a flat base replaces."""
        ...

    @property
    def random(self) -> RandomStates:
        """Generator states among the inputs and outputs of the graphs."""
        ...

    @property
    def is_specialized(self) -> bool:
        """Whether sizes are static although dynamic ones were requested."""
        ...

    def held_offsets(self) -> frozenset[int]:
        """Positions of arguments whose storage offset is a constant of the compiled code."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionalProgram:
    """A functional joint graph. Its placeholders are slots (arguments, or the bases of arguments), then tangents. If slots share
    memory that the program writes to, a flat base, which is a 1-D view of their storage, replaces them."""

    graph_module: torch.fx.GraphModule
    traced: TracedProgram
    replaced: tuple[AliasGroup, ...]
    is_specialized: bool = False  # to static sizes, although dynamic ones were requested
    keeps_writes: bool = False  # the graph is not functional: its nodes write, in the order of the trace
    random: RandomStates = RandomStates()  # generator states among the graph's inputs and outputs

    @property
    def analysis(self) -> ProgramAnalysis:
        """The analysis of the trace."""
        return self.traced.analysis

    @property
    def plan(self) -> InputPlan:
        """Which arguments have placeholders."""
        return self.traced.plan

    @property
    def layout(self) -> ProgramLayout | None:
        """The layout of wrapper subclasses; None if there are none."""
        return self.traced.layout

    @property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """Tensors of closures and globals, whose placeholders follow the plan's slots."""
        return self.traced.captured

    @property
    def example_tangents(self) -> tuple[Any, ...]:
        """The fake tangents of the trace."""
        return self.traced.example_tangents

    @property
    def num_dense_outputs(self) -> int:
        """The number of outputs of the forward graph."""
        return self.traced.num_dense_outputs

    def held_offsets(self) -> frozenset[int]:
        """Positions of arguments whose storage offset is a constant of the compiled code."""
        traced = self.traced
        if traced.layout is not None:
            return frozenset()
        aliases = AliasMap(traced.graph_module)
        placeholders = [node for node in traced.graph_module.graph.nodes if node.op == "placeholder"]
        held: set[int] = set()
        for slot, info, node in zip(traced.plan.slots, self.analysis.inputs, placeholders, strict=False):
            is_moved = info.mutation is not None and info.mutation.geometry is not None
            if info.is_tensor and not slot.is_base and (is_moved or aliases.as_strided_views_of(node)):
                held |= {*slot.members}
        return frozenset(held)

    @property
    def primals(self) -> list[torch.fx.Node]:
        """The placeholders other than tangents and generator states of the backward."""
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        traced = self.traced
        late = (*traced.example_tangents, *traced.example_backward_writes, *self.random.examples)
        return placeholders[: len(placeholders) - len(late)]

    def gradient_dependences(self) -> tuple[frozenset[int], ...]:
        """For every gradient, the tangents it is computed from. Empty if there are fewer than two tangents."""
        layout = self.traced.layout
        if len(self.traced.example_tangents) < 2:
            return ()
        found = gradient_dependences(self.graph_module, *self._gradients())
        if layout is not None:
            found = layout.of_wholes(found)
        unread = self.analysis.given_unread or (frozenset(),) * len(found)
        return tuple(a | b for a, b in zip(found, unread, strict=True))

    def gradient_histories(self) -> tuple[frozenset[int], ...]:
        """For every gradient, the tangents for which it requires a gradient in eager. For wrapper subclasses, whose autograd the
        trace does not see, all tangents."""
        if self.traced.layout is None:
            return gradient_histories(self.graph_module, *self._gradients())
        everything = frozenset(range(len(self.analysis.tangents)))
        return tuple([everything for g in self.analysis.gradients if g is not None])

    def _gradients(self) -> tuple[list[torch.fx.Node], int, int]:
        """The tangents, the position of the first gradient among the outputs, and the number of gradients."""
        layout = self.traced.layout
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        first = len(self.primals)
        tangents = placeholders[first : first + len(self.traced.example_tangents)]
        first_gradient = self.traced.num_dense_outputs + len(self.random.forward)
        count = sum(1 for g in self.analysis.gradients if g is not None)
        return tangents, first_gradient, count if layout is None else dense_count(layout.gradients)

    def slot_placeholders(self) -> list[torch.fx.Node | None]:
        """The placeholder of each slot; None for slots that a flat base replaces."""
        members = {member for group in self.replaced for member in group.members}
        flat = {group.position for group in self.replaced}
        own = iter(node for position, node in enumerate(self.primals) if position not in flat)
        return [None if i in members else next(own) for i in range(self.traced.num_dense_slots)]


# A program is traced again while a trace finds that it needs more (TraceNeeds), such as a captured tensor as an input. A few
# traces are enough; a program that needs so many would need them without end.
_MOST_ROUNDS = 32


def functional_program(request: ProgramRequest) -> FunctionalProgram:
    """Trace a program with its backward, and functionalize the graph.

    If symbolic sizes do not tell which memory the program writes to, it is compiled for static sizes. Raises SymbolicMemory if
    these are unknown, because the arguments are fake. Sizes are static too if the trace raises for symbolic ones, as `resize_`
    and many operators of sparse tensors do.
    """
    static = request.for_these_sizes()
    try:
        traced = trace(request)
    except _RAISED_FOR_SYMBOLS as error:
        if static is None or (isinstance(error, RefimplError) and not isinstance(error, UnsupportedByRefimpl)):
            raise
        return functional_program(static)  # an error that has nothing to do with symbols is raised again
    if static is not None and _has_unknown_places(traced, request):
        return functional_program(static)
    if request.config.disable_functionalization:
        slots = traced.dense_slots([*traced.plan.slot_values(request.args), *traced.captured])
        keeps_mutations = request.config.keep_inference_input_mutations
        if can_keep_writes(traced, slots, keeps_mutations=keeps_mutations):
            own = with_own_writes(traced, keeps_mutations=keeps_mutations)
            return FunctionalProgram(
                graph_module=own.graph_module,
                traced=own,
                replaced=(),
                is_specialized=request.is_specialized,
                keeps_writes=True,
            )
    try:
        return functionalize(traced, request)
    except SymbolicMemory:
        if static is None:
            raise
        return functional_program(static)


def trace(request: ProgramRequest) -> TracedProgram:
    """The joint graph of forward and backward, with its analysis.

    If a first trace shows a write to memory that two arguments share, a second trace has one placeholder for both."""
    config = request.config
    fake_mode = fake_mode_for(request.args, dynamic=config.dynamic_shapes)
    plan = plan_for(request.args, merges_duplicates=True)  # `x is y` of two arguments has to hold in the trace
    traced = _trace_with_plan(request, plan, fake_mode)
    if request.check is not None:
        request.check(traced)
    needed = _needed_plan(request.args, traced, merges_duplicates=config.merges_duplicates)
    return traced if needed == plan else _trace_with_plan(request, needed, fake_mode)


def _trace_with_plan(request: ProgramRequest, plan: InputPlan, fake_mode: FakeTensorMode) -> TracedProgram:
    """The trace of a program, repeated until it has all that the program needs (TraceNeeds)."""
    config = request.config
    values = plan.slot_values(request.args)
    trace_options = TraceOptions(
        decompositions=config.decompositions,
        tracing_mode="symbolic" if _is_symbolic(fake_mode, config) else "fake",
        allow_non_fake_inputs=True,
        record_stack_traces=config.record_stack_traces,
        record_module_stack=config.is_export,
        specializes_integers=config.is_export or config.specializes_integers,
        decomposes_aliases=True,
        records_assertions=not config.is_export,
        pre_dispatch=config.pre_dispatch,
        returns_writes=BRANCHES_MAY_WRITE and not config.pre_dispatch,
    )
    options = JointOptions(
        trace=trace_options,
        wants_backward=request.wants_backward,
        has_tangents=not config.no_tangents,
        keeps_captured=config.is_export,
    )
    needs, rounds = TraceNeeds(), 0
    is_inference, has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    while True:
        fakes = fake_slots(values, fake_mode, num_static=config.num_params_buffers, dynamic=config.dynamic_shapes)
        inputs = TraceInputs(plan=plan, values=tuple(values), fakes=tuple(fakes), fake_mode=fake_mode)
        try:  # an interrupted trace may leave other grad modes set, and be within a transform of torch.func
            with torch.inference_mode(is_inference), torch.set_grad_enabled(has_gradients), leaving_transforms():
                return trace_program(request.function, inputs, options, needs)
        except NeedsMore as more:
            needs, rounds = more.needs, rounds + 1
        if rounds == _MOST_ROUNDS:
            raise UnsupportedByRefimpl(
                seen="a tensor that a branch or body makes anew in every trace, where gradients pass through the branch",
                supported="branches and bodies with gradients that take such tensors as operands",
                do="make the tensor outside, and pass it as an operand",
            )


def functionalize(traced: TracedProgram, request: ProgramRequest) -> FunctionalProgram:
    """The program's graph without writes and views. Its inputs are marked for partitioners."""
    config, values = request.config, traced.plan.slot_values(request.args)
    groups: tuple[tuple[int, ...], ...] = ()
    if traced.analysis.mutated_inputs:
        slots = traced.dense_slots([*values, *traced.captured])
        # `as_strided` may view memory outside an argument, so that arguments in one storage may be aliases. With symbolic sizes
        # only overlapping arguments count.
        groups = alias_groups(slots) if config.dynamic_shapes else storage_groups(slots)
    if traced.analysis.backward_writes:
        aliased = {i for group in alias_groups(traced.dense_slots([*values, *traced.captured])) for i in group}
        if not aliased.isdisjoint(traced.analysis.backward_writes):
            raise UnsupportedByRefimpl(
                seen="a backward that writes to an input which shares memory with another input",
                supported="backwards that write to inputs of their own memory",
                do="clone one of the two inputs",
            )
    functional = functionalize_graph(
        traced.graph_module,
        alias_groups=groups,
        strategy=config.functionalization,  # type: ignore[arg-type]
        num_tangents=len(traced.example_tangents) + len(traced.example_backward_writes),
    )
    program = FunctionalProgram(
        graph_module=functional.graph_module,
        traced=traced,
        replaced=tuple(functional.replaced),
        is_specialized=request.is_specialized,
    )
    merge_repeated_draws(program.graph_module)
    _mark_mutated(program, values)
    _mark_writable(program, values, is_followed=config.is_followed)
    return program


def with_flat_bases_written(program: FunctionalProgram, request: ProgramRequest) -> FunctionalProgram:
    """Let the graph return the final values of flat bases, if the program writes to memory that no argument covers."""
    traced = program.traced
    if not program.replaced or traced.layout is not None:
        return program
    static = request.for_these_sizes()
    args = static.args if program.is_specialized and static is not None else request.args
    slots = [*traced.plan.slot_values(args), *traced.captured]
    analysis = with_flat_writes(program.graph_module, traced.analysis, program.replaced, slots)
    return replace(program, traced=replace(traced, analysis=analysis))


def with_random_states(program: FunctionalProgram) -> FunctionalProgram:
    """If `functionalize_rng_ops` is set, random ops become functions of the generator's state, an input of the graph."""
    if not current_settings().functionalize_rng_ops:
        return program
    fake_mode, count = program.traced.fake_mode, program.traced.num_dense_outputs
    return replace(program, random=functionalize_random(program.graph_module, fake_mode, count))


def _has_unknown_places(traced: TracedProgram, request: ProgramRequest) -> bool:
    """Whether symbolic sizes do not tell which memory the program writes to, or which arguments are views of one base.

    Sizes of tensors that a flat base replaces are not inputs of the graph, and fake arguments have no base.
    """
    assert request.real_args is not None
    slots = traced.dense_slots([*traced.plan.slot_values(request.args), *traced.captured])
    if traced.analysis.mutated_inputs or traced.analysis.backward_writes:
        # `as_strided` may reach from one argument into another one that only shares its storage.
        reaches_beyond = bool(traced.graph_module.graph.find_nodes(op="call_function", target=_AS_STRIDED))
        if storage_groups(slots) if reaches_beyond else alias_groups(slots):
            return True
    mutations = [info.mutation for info in traced.analysis.inputs if info.mutation is not None]
    if any(mutation.overlaps_itself or _has_unreturned_sizes(mutation) for mutation in mutations):
        return True
    return any(slot.is_base for slot in _needed_plan(request.real_args, traced, merges_duplicates=True).slots)


def _has_unreturned_sizes(mutation: InputMutation) -> bool:
    """Whether an input gets a symbolic shape that is no output of the graph, as a wrapper subclass does."""
    geometry = mutation.geometry
    if geometry is None or mutation.numbers:
        return False
    return any(type(n) is not int for n in (*geometry.size, *geometry.stride, geometry.offset))


def _is_symbolic(fake_mode: FakeTensorMode, config: AOTConfig) -> bool:
    shape_env = fake_mode.shape_env
    if shape_env is None:
        return False
    return config.dynamic_shapes or not isinstance(shape_env, ShapeEnv)


def _needed_plan(args: Sequence[Any], traced: TracedProgram, *, merges_duplicates: bool) -> InputPlan:
    """The plan for the mutations that the first trace found. A tensor passed twice and not mutated gets two placeholders, unless
    `merges_duplicates`."""
    plan, analysis = traced.plan, traced.analysis
    mutations = [
        (slot.members, info.mutation) for slot, info in zip(plan.slots, analysis.inputs, strict=False) if info.mutation
    ]
    written = [p for members, mutation in mutations if mutation.writes_data for p in members]
    written += [p for i in analysis.backward_writes if i < len(plan.slots) for p in plan.slots[i].members]
    reshaped = [p for members, _ in mutations for p in members]
    gets_history = [
        p
        for members, mutation in mutations
        if mutation.writes_data and mutation.is_visible_to_autograd and mutation.requires_grad
        for p in members
    ]
    return plan_for(
        args, written=written, reshaped=reshaped, gets_history=gets_history, merges_duplicates=merges_duplicates
    )


def _mark_mutated(program: FunctionalProgram, values: Sequence[Any]) -> None:
    """Mark inputs that the epilogue, or another backward, writes to before the backward runs: partitioners must not save them.

    Other views of the same base are marked too: autograd counts a write to one as a write to all."""
    mutated = (*program.analysis.mutated_inputs, *program.analysis.backward_writes)
    if not mutated:
        return
    slots = program.slot_placeholders()
    bases = {id(base_of(values[i])) for i in mutated if i < len(values) and isinstance(values[i], torch.Tensor)}
    related = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and id(base_of(v)) in bases]
    for position in sorted({*mutated, *related}):
        for dense in program.traced.dense_positions(position):
            node = slots[dense]
            if node is not None:
                note(node, is_mutated_input=True)
    primals = program.primals
    for group in program.replaced:
        note(primals[group.position], is_mutated_input=True)


def _mark_writable(program: FunctionalProgram, values: Sequence[Any], *, is_followed: bool) -> None:
    """Mark inputs that the caller may write to before the backward runs: if eager does not save them, partitioners save copies.

    Parameters and other leaves are not marked, because optimizers write to them after the backward, unless more of the program
    follows this graph (is_followed)."""
    slots = program.slot_placeholders()
    for position, value in enumerate([*values, *program.traced.captured]):
        if not isinstance(value, torch.Tensor):
            continue
        is_leaf = isinstance(value, torch.nn.Parameter) or (value.requires_grad and value.is_leaf)
        if is_leaf and not is_followed:
            continue
        for dense in program.traced.dense_positions(position):
            node = slots[dense]
            if node is not None:
                note(node, is_writable_input=True)
