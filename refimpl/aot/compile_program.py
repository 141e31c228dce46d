"""One ahead-of-time compile, from a flat function and its arguments to a flat callable.

Counterpart: torch/_functorch/_aot_autograd/graph_compile.py aot_stage1_graph_capture, aot_stage2_compile
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode
from refimpl.aot.analysis.fake_arguments import fake_mode_for, fake_slots
from refimpl.aot.analysis.input_plan import InputPlan, alias_groups, base_of, plan_for, storage_groups
from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.analysis.subclasses import dense_count
from refimpl.aot.analysis.trace_needs import NeedsMore, TraceNeeds
from refimpl.aot.compilation_context import graph_being_compiled
from refimpl.aot.effects import thread_tokens, unlift_tokens
from refimpl.aot.in_graph_mutations import with_flat_writes, with_mutations_in_graph
from refimpl.aot.joint.gradient_dependences import constants_behind, gradient_dependences, gradient_histories
from refimpl.aot.joint.graph import FlatFunction, JointOptions, TracedProgram, TraceInputs, trace_program
from refimpl.aot.joint.partial_backward import is_divisible, tangents_behind, without_new_guards, without_tangents
from refimpl.aot.joint.repeated_draws import merge_repeated_draws
from refimpl.aot.joint.zero_gradients import refuse_zeros
from refimpl.aot.options import AOTConfig, current_settings
from refimpl.aot.partition import default_partition
from refimpl.aot.partition.cut_problem import IS_WRITABLE
from refimpl.aot.rng import RandomStates, functionalize_random, with_backward_states, with_forward_states
from refimpl.aot.runtime.autograd_function import CompiledTraining
from refimpl.aot.runtime.eager_calls import eager_conditions, eager_where
from refimpl.aot.runtime.graph_call import (
    BoxedCall,
    FlatCall,
    boxed,
    with_answers,
    with_flat_bases,
    with_traced_strides,
)
from refimpl.aot.runtime.kept_values import Keeping, keeping_of
from refimpl.aot.runtime.subclass_call import WrapperTangents, with_wrapped_gradients, with_wrapped_slots
from refimpl.aot.runtime.wrapper import runtime_wrapper
from refimpl.functionalize import AliasGroup, SymbolicMemory, functionalize_graph
from refimpl.symbolic.errors import NewGuard
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.options import TraceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionalProgram:
    """Placeholders: slots, those of one written storage replaced by one flat base; then tangents. Outputs as traced."""

    graph_module: torch.fx.GraphModule
    traced: TracedProgram
    replaced: tuple[AliasGroup, ...]
    is_specialized: bool = False  # for the sizes it was compiled with, though symbols were asked for
    random: RandomStates = RandomStates()  # inputs and outputs that compiled graphs have besides

    @property
    def analysis(self) -> ProgramAnalysis:
        """Of the trace."""
        return self.traced.analysis

    @property
    def primals(self) -> list[torch.fx.Node]:
        """The placeholders that are no tangents."""
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        num_tangents = len(self.traced.example_tangents) + len(self.random.examples)
        return placeholders[: len(placeholders) - num_tangents]

    def gradient_dependences(self) -> tuple[frozenset[int], ...]:
        """Of every gradient, the incoming gradients it is computed from. Empty where it cannot be but one."""
        layout = self.traced.layout
        if len(self.traced.example_tangents) < 2:
            return ()
        found = gradient_dependences(self.graph_module, *self._gradients())
        if layout is not None:
            found = layout.of_wholes(found)
        unread = self.analysis.given_unread or (frozenset(),) * len(found)
        return tuple(a | b for a, b in zip(found, unread, strict=True))

    def gradient_histories(self) -> tuple[frozenset[int], ...]:
        """Of every gradient, the incoming gradients with which it requires one itself. Of wrappers, whose autograd the trace does
        not see, all of them."""
        if self.traced.layout is None:
            return gradient_histories(self.graph_module, *self._gradients())
        everything = frozenset(range(len(self.analysis.tangents)))
        return tuple([everything for g in self.analysis.gradients if g is not None])

    def _gradients(self) -> tuple[list[torch.fx.Node], int, int]:
        """Incoming gradients; where among the outputs gradients begin; how many there are."""
        layout = self.traced.layout
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        first = len(self.primals)
        tangents = placeholders[first : first + len(self.traced.example_tangents)]
        first_gradient = self.traced.num_dense_outputs + len(self.random.forward)
        count = sum(1 for g in self.analysis.gradients if g is not None)
        return tangents, first_gradient, count if layout is None else dense_count(layout.gradients)

    def slot_placeholders(self) -> list[torch.fx.Node | None]:
        """The placeholder of each slot; None for slots that a flat base has replaced."""
        members = {member for group in self.replaced for member in group.members}
        flat = {group.position for group in self.replaced}
        own = iter(node for position, node in enumerate(self.primals) if position not in flat)
        return [None if i in members else next(own) for i in range(self.traced.num_dense_slots)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """`call` takes the flat list of arguments and returns the flat list of results."""

    call: FlatCall
    program: FunctionalProgram


def compile_program(
    function: FlatFunction, args: Sequence[Any], config: AOTConfig, *, plain: Sequence[Any] | None = None
) -> CompiledProgram:
    """What does what `function(*args)` does, mutation and aliases included. `plain` is that of `functional_program`."""
    program = functional_program(function, args, config, plain=plain)
    program = _with_flat_writes(program, plain if program.is_specialized and plain is not None else args)
    if current_settings().functionalize_rng_ops:
        program = _with_functional_random(program)
    compile_graphs = _compile_training if program.analysis.differentiable else _compile_inference
    call = compile_graphs(program, config)
    traced = program.traced
    examples = args if plain is None else plain
    conditions = eager_conditions(examples, plan=traced.plan, analysis=program.analysis, captured=traced.captured)
    return CompiledProgram(call=eager_where(conditions, function, call), program=program)


def functional_program(
    function: FlatFunction,
    args: Sequence[Any],
    config: AOTConfig,
    *,
    wants_backward: bool | None = None,
    check: Callable[[TracedProgram], None] | None = None,
    plain: Sequence[Any] | None = None,
) -> FunctionalProgram:
    """Trace, then functionalize. A program that writes to memory which two arguments share is traced a second time.

    `check` sees the first trace, in which every argument has a placeholder; what it raises goes through.
    plain: the tensors and numbers that fake arguments with symbols stand for. A program whose memory cannot be told by symbols is
    compiled for those alone; without them that is SymbolicMemory, if the arguments are fake.
    """
    fake_mode = fake_mode_for(args, dynamic=config.dynamic_shapes)
    plan = plan_for(args, merges_duplicates=True)  # a program sees that two of its arguments are one
    traced = _trace(function, args, plan, fake_mode, config, wants_backward)
    if check is not None:
        check(traced)
    needed = _needed_plan(args, traced.analysis, plan, merges_duplicates=config.merges_duplicates)
    if needed != plan:
        traced = _trace(function, args, needed, fake_mode, config, wants_backward)
        plan = needed
    slots = traced.dense_slots([*plan.slot_values(args), *traced.captured])
    groups = alias_groups(slots) if traced.analysis.mutated_inputs else ()
    overlapping = [
        info for info in traced.analysis.inputs if info.mutation is not None and info.mutation.overlaps_itself
    ]
    if plain is None and not any(isinstance(arg, FakeTensor) for arg in args):
        plain = args

    def for_these_alone() -> FunctionalProgram:
        static = replace(config, dynamic_shapes=False)
        assert plain is not None
        return replace(functional_program(function, plain, static, wants_backward=wants_backward), is_specialized=True)

    if config.dynamic_shapes and plain is not None:
        # Sizes of tensors that a flat base replaces are no inputs of the graph, and fakes are views of nothing.
        if groups or overlapping or _has_bases(_needed_plan(plain, traced.analysis, plan, merges_duplicates=True)):
            return for_these_alone()
    if traced.analysis.mutated_inputs and not config.dynamic_shapes:
        groups = storage_groups(slots)  # which of them meet depends on what the program views beside its arguments too
    try:
        functional = functionalize_graph(
            traced.graph_module,
            alias_groups=groups,
            strategy=config.functionalization,  # type: ignore[arg-type]
            num_tangents=len(traced.example_tangents),
        )
    except SymbolicMemory:
        if not config.dynamic_shapes or plain is None:
            raise
        return for_these_alone()
    program = FunctionalProgram(
        graph_module=functional.graph_module, traced=traced, replaced=tuple(functional.replaced)
    )
    merge_repeated_draws(program.graph_module)
    _mark_mutated(program, plan.slot_values(args))
    _mark_writable(program, plan.slot_values(args), is_followed=config.is_followed)
    return program


def _trace(
    function: FlatFunction,
    args: Sequence[Any],
    plan: InputPlan,
    fake_mode: FakeTensorMode,
    config: AOTConfig,
    wants_backward: bool | None,
) -> TracedProgram:
    """The trace of a program, made again until it is prepared for what the program needs."""
    values = plan.slot_values(args)
    trace_options = TraceOptions(
        decompositions=config.decompositions,
        tracing_mode="symbolic" if _is_symbolic(fake_mode, config) else "fake",
        allow_non_fake_inputs=True,
        record_stack_traces=config.record_stack_traces,
        record_module_stack=config.is_export,
        specializes_integers=config.is_export or config.specializes_integers,
        decomposes_aliases=True,
        pre_dispatch=config.pre_dispatch,
    )
    options = JointOptions(
        trace=trace_options,
        wants_backward=wants_backward,
        has_tangents=not config.no_tangents,
        keeps_captured=config.is_export,
    )
    needs = TraceNeeds()
    is_inference, has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    while True:
        fakes = fake_slots(values, fake_mode, num_static=config.num_params_buffers, dynamic=config.dynamic_shapes)
        inputs = TraceInputs(plan=plan, values=tuple(values), fakes=tuple(fakes), fake_mode=fake_mode)
        try:  # a trace that is given up may have left these modes, or entered them
            with torch.inference_mode(is_inference), torch.set_grad_enabled(has_gradients):
                return trace_program(function, inputs, options, needs)
        except NeedsMore as more:
            needs = more.needs


def _is_symbolic(fake_mode: FakeTensorMode, config: AOTConfig) -> bool:
    shape_env = fake_mode.shape_env
    if shape_env is None:
        return False
    return config.dynamic_shapes or not isinstance(shape_env, ShapeEnv)


def _needed_plan(
    args: Sequence[Any], analysis: ProgramAnalysis, plan: InputPlan, *, merges_duplicates: bool
) -> InputPlan:
    """The plan once it is known what is written. Duplicates that are left alone are placeholders of their own, unless merged."""
    mutations = [
        (slot.members, info.mutation) for slot, info in zip(plan.slots, analysis.inputs, strict=False) if info.mutation
    ]
    written = [p for members, mutation in mutations if mutation.writes_data for p in members]
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


def _has_bases(plan: InputPlan) -> bool:
    return any(slot.is_base for slot in plan.slots)


def _mark_mutated(program: FunctionalProgram, values: Sequence[Any]) -> None:
    """What the epilogue writes to is not there any more when backward runs: partitioners must not save it. Nor other views of the
    same base: autograd takes a write to one for a write to all, wherever in memory they are."""
    if not program.analysis.mutated_inputs:
        return
    slots = program.slot_placeholders()
    mutated = program.analysis.mutated_inputs
    bases = {id(base_of(values[i])) for i in mutated if i < len(values) and isinstance(values[i], torch.Tensor)}
    related = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and id(base_of(v)) in bases]
    for position in sorted({*mutated, *related}):
        for dense in program.traced.dense_positions(position):
            node = slots[dense]
            if node is not None:
                node.meta["is_mutated_input"] = True
    primals = program.primals
    for group in program.replaced:
        primals[group.position].meta["is_mutated_input"] = True


def _mark_writable(program: FunctionalProgram, values: Sequence[Any], *, is_followed: bool) -> None:
    """Programs write in place to what they have computed, to data and to buffers: of what eager keeps nothing of, partitioners
    save copies. Not of parameters, as long as the program does not go on after this graph: those are written after the backward,
    and keeping them takes no memory; nor of other leaves that require a gradient."""
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
                node.meta[IS_WRITABLE] = True


def _examples(graph_module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta.get("val") for node in graph_module.graph.nodes if node.op == "placeholder"]


def _compile_inference(program: FunctionalProgram, config: AOTConfig) -> FlatCall:
    compiler = config.inference_compiler or config.fw_compiler
    assert compiler is not None
    graph_module, analysis = program.graph_module, program.analysis
    if config.keep_inference_input_mutations and program.traced.layout is None:
        graph_module, analysis = with_mutations_in_graph(graph_module, analysis, program.slot_placeholders())
    unlift_tokens(graph_module, first_outputs=len(thread_tokens(graph_module, program.traced.fake_mode).forward))
    with graph_being_compiled(config.aot_id, "inference"):
        found = compiler(graph_module, _examples(graph_module))
    compiled = with_traced_strides(boxed(found), found, graph_module, program.traced.num_dense_outputs)
    return runtime_wrapper(
        analysis,
        program.traced.plan,
        inference=_with_slots(compiled, program),
        training=None,
        aot_id=config.aot_id,
        captured=program.traced.captured,
    )


def _compile_training(program: FunctionalProgram, config: AOTConfig) -> FlatCall:
    analysis = program.analysis
    joint = program.graph_module
    if analysis.has_backward:
        partition = config.partition_fn or default_partition
        primals = [node.meta.get("val") for node in program.primals]
        tangents = [*program.traced.example_tangents, *program.random.examples]
        num_outputs = program.traced.num_dense_outputs + len(program.random.forward)
        dependences, histories = program.gradient_dependences(), program.gradient_histories()
        tokens = thread_tokens(joint, program.traced.fake_mode)
        forward_module, backward_module = partition(
            joint,
            ([*tokens.forward, *primals], [*tangents, *tokens.backward]),
            num_fwd_outputs=len(tokens.forward) + num_outputs,
            **_static_inputs(partition, range(len(tokens.forward), len(tokens.forward) + config.num_params_buffers)),
        )
        unlift_tokens(forward_module, first_outputs=len(tokens.forward))
        unlift_tokens(backward_module, last_outputs=len(tokens.backward))
        whole = with_backward_states(_LazyCompile(backward_module, config), program.random)
        has_parts = not tokens.backward and not program.random.backward and program.traced.layout is None
        get_backward = _ByTangents(whole, backward_module if has_parts else None, config, analysis)
        keeping = get_backward.keeping(forward_module, num_outputs, analysis)
    else:  # autograd refused: the forward runs, asking for a gradient raises
        dependences, histories, keeping = (), (), None
        forward_module, whole = joint, _no_backward
        get_backward = _ByTangents(whole, None, config, analysis)
        unlift_tokens(joint, first_outputs=len(thread_tokens(joint, program.traced.fake_mode).forward))
    assert config.fw_compiler is not None
    with graph_being_compiled(config.aot_id, "forward"):
        found = config.fw_compiler(forward_module, _examples(forward_module))
    forward = with_traced_strides(boxed(found), found, forward_module, program.traced.num_dense_outputs)
    forward = with_answers(forward, forward_module)
    layout = program.traced.layout
    training = CompiledTraining(
        _with_slots(forward, program),
        get_backward if layout is None else _ByTangents(with_wrapped_gradients(whole, layout), None, config, analysis),
        analysis,
        dependences=dependences,
        histories=histories,
        wrapper_tangents=None if layout is None else WrapperTangents(analysis, layout, program.traced.example_tangents),
        keeping=keeping,
    )
    return runtime_wrapper(
        analysis,
        program.traced.plan,
        inference=None,
        training=training,
        aot_id=config.aot_id,
        captured=program.traced.captured,
    )


def _static_inputs(partition: Callable[..., Any], positions: Sequence[int]) -> dict[str, list[int]]:
    """Parameters and buffers, which are there as long as the program is: saving them costs no memory. For who takes it."""
    name = "static_lifetime_input_indices"
    try:
        takes = name in inspect.signature(partition).parameters
    except (TypeError, ValueError):
        takes = False
    return {name: list(positions)} if takes and positions else {}


def _with_flat_writes(program: FunctionalProgram, args: Sequence[Any]) -> FunctionalProgram:
    traced = program.traced
    if not program.replaced or traced.layout is not None:
        return program
    slots = [*traced.plan.slot_values(args), *traced.captured]
    analysis = with_flat_writes(program.graph_module, traced.analysis, program.replaced, slots)
    return replace(program, traced=replace(traced, analysis=analysis))


def _with_functional_random(program: FunctionalProgram) -> FunctionalProgram:
    fake_mode, count = program.traced.fake_mode, program.traced.num_dense_outputs
    return replace(program, random=functionalize_random(program.graph_module, fake_mode, count))


def _with_slots(compiled: BoxedCall, program: FunctionalProgram) -> BoxedCall:
    """A function of the slots, which gives forward outputs, then saved values: wrapper subclasses, if the program has them."""
    compiled = with_flat_bases(with_forward_states(compiled, program.random), program.replaced)
    layout = program.traced.layout
    return compiled if layout is None else with_wrapped_slots(compiled, layout)


class _LazyCompile:
    """The backward graph, compiled when a gradient is first asked for. Safe to call from several threads.

    is_late: the forward may be used already. What a compiler cannot compile then without a guard on a symbol runs as it is.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, config: AOTConfig, *, is_late: bool = False) -> None:
        self._is_late = is_late
        self._graph_module = graph_module
        self._config = config
        self._compiled: BoxedCall | None = None
        self._lock = threading.Lock()
        if any(isinstance(value, torch.SymInt) for value in _examples(graph_module)):
            self()  # what a compiler learns of a symbol has to be known before the forward is used again

    def __call__(self) -> BoxedCall:
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._compile()
        return self._compiled

    def _compile(self) -> BoxedCall:
        compiler: Callable[..., Any] | None = self._config.bw_compiler or self._config.fw_compiler
        assert compiler is not None
        graph_module = self._graph_module
        with graph_being_compiled(self._config.aot_id, "backward"):
            if not self._is_late:
                return boxed(compiler(graph_module, _examples(graph_module)))
            try:
                with without_new_guards(graph_module):
                    return boxed(compiler(graph_module, _examples(graph_module)))
            except NewGuard:
                return boxed(graph_module)


class _ByTangents:
    """The backward graph by which incoming gradients are missing: without what would be computed of these alone."""

    def __init__(
        self, whole: Callable[[], BoxedCall], graph_module: torch.fx.GraphModule | None, config: AOTConfig,
        analysis: ProgramAnalysis,
    ) -> None:  # fmt: skip
        self._whole = whole
        self._analysis = analysis
        self._graph_module = graph_module
        self._config = config
        self._parts: dict[frozenset[int], Callable[[], BoxedCall]] = {}
        self._lock = threading.Lock()

    def keeping(self, forward: torch.fx.GraphModule, num_outputs: int, analysis: ProgramAnalysis) -> Keeping | None:
        """What is kept of what the forward saves, and until when. None where there are no parts."""
        if self._graph_module is None:
            return None
        return keeping_of(
            forward, self._graph_module, num_outputs, analysis, is_divisible=is_divisible(self._graph_module)
        )

    def __call__(self, missing: frozenset[int]) -> BoxedCall:
        if not missing:
            return self._whole()
        with self._lock:
            if missing not in self._parts:
                part = None
                if self._graph_module is not None and self._gives_unread(self._graph_module.graph, missing):
                    part = without_tangents(self._graph_module, missing)
                if part is None:
                    refuse_zeros(self._analysis.adding, missing)
                self._parts[missing] = self._whole if part is None else _LazyCompile(part, self._config, is_late=True)
        return self._parts[missing]()

    def _gives_unread(self, graph: torch.fx.Graph, missing: frozenset[int]) -> bool:
        """Whether a part of the graph gives what autograd gives for what arrives without reading it."""
        unread = [(gradient, found - missing) for gradient, found in enumerate(self._analysis.given_unread)]
        if not any(found for _, found in unread):
            return True
        returned: Any = graph.output_node().args[0]
        tangents, constants = tangents_behind(graph), constants_behind(graph)
        return all(
            not found or not tangents.get(returned[gradient]) or found <= constants[returned[gradient]]
            for gradient, found in unread
        )


def _no_backward() -> BoxedCall:
    raise AssertionError("a backward that autograd refused to trace is not compiled")
