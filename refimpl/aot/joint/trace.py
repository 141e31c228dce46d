"""The joint trace: a program and its backward in one graph, with the program's writes and views still in it.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py fn_prepped_for_autograd, create_joint;
collect_metadata_analysis.py run_functionalized_fw_and_collect_metadata
Differs: one trace. The program's own in-place ops run on tensors with autograd, so that autograd itself differentiates mutation.
Writes and views are removed from the graph afterwards (refimpl.functionalize). The same trace tells which tensors are aliases
and which are written to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    PlainCodeGen,
    storage_key,
    without_saved_tensors_hooks,
)
from refimpl.aot.analysis.autograd_graph import calls_backward, freed_together, is_hooked, is_new_leaf, lacks_formula
from refimpl.aot.analysis.data_assignments import DataAssignmentsMode, refuse_unseen
from refimpl.aot.analysis.fake_arguments import CapturedInputsMode, RealSlotsMode, unrelated_alias, with_history
from refimpl.aot.analysis.inputs import (
    InputPlan,
    Start,
    geometry_change_of,
    is_same,
    make_gradients_plain,
    mutation_of,
    name_writes,
    version_of,
    view_of_base,
    view_of_left_places,
)
from refimpl.aot.analysis.metadata import (
    ForwardOutput,
    Geometry,
    InputInfo,
    InputMutation,
    NeedsMore,
    OutputInfo,
    OutputKind,
    ProgramAnalysis,
    TangentInfo,
    TraceNeeds,
    with_needs_of,
)
from refimpl.aot.analysis.outputs import ForwardOutputsState, OutputAnalysisState, owned_outputs
from refimpl.aot.analysis.remade_views import RemadeViewsMode, is_read_otherwise
from refimpl.aot.analysis.subclasses import ProgramLayout, dense_count, dense_parts, layout_of
from refimpl.aot.errors import GradientInProgram, UnexpectedFake
from refimpl.aot.joint.backward import (
    IS_BACKWARD,
    Backward,
    copy_forward_provenance,
    inputs_written_in_backward,
    note_autograd_step,
    read_when_backward_runs,
    trace_backward,
    writes_in_backward,
)
from refimpl.aot.joint.decomposed_calls import DecomposedViewsState, noted_layouts
from refimpl.aot.joint.eager_results import EagerResultsMode, ScalarMasksMode, eager_gradients, refuse_retained
from refimpl.aot.joint.gradient_dependences import AnswersState, given_unread, note_constants, note_history
from refimpl.aot.joint.outer_graph import OuterGraphMode
from refimpl.aot.joint.repeated_draws import mark_draw, start_draws
from refimpl.errors import DataDependentFakeRead, UnsupportedByRefimpl
from refimpl.functionalize.aliases import AliasMap
from refimpl.functionalize.schemas import SET_OPS
from refimpl.trace.higher_order.calls import closed_over_by
from refimpl.trace.higher_order.functional_checks import has_hidden_aliases
from refimpl.trace.higher_order.leaf_functions import gives_operands
from refimpl.trace.metadata import note_grad_mode
from refimpl.trace.options import TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.tracing import Trace, current_trace

FlatFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A joint graph and its analysis. Placeholders: the plan's slots, then tangents, then the
    inputs that the backward writes to. Outputs: the forward's, then gradients, then the final values of these inputs."""

    graph_module: torch.fx.GraphModule
    analysis: ProgramAnalysis
    plan: InputPlan
    example_inputs: tuple[Any, ...]
    example_tangents: tuple[Any, ...]
    example_backward_writes: tuple[
        torch.Tensor, ...
    ]  # inputs that the backward writes to: placeholders after the tangents
    fake_mode: FakeTensorMode
    layout: ProgramLayout | None = None  # of wrapper subclasses among inputs and outputs; None if there are none
    captured: tuple[
        torch.Tensor, ...
    ] = ()  # tensors of closures and globals: their placeholders follow the plan's slots

    def dense_slots(self, slots: Sequence[Any]) -> list[Any]:
        """The values of the graph's placeholders."""
        return list(slots) if self.layout is None else self.layout.dense_inputs(slots)

    def dense_positions(self, slot: int) -> Sequence[int]:
        """The positions of the placeholders for one slot."""
        return (slot,) if self.layout is None else self.layout.dense_positions(slot)

    @property
    def num_dense_slots(self) -> int:
        """The number of placeholders for slots."""
        return len(self.analysis.inputs) if self.layout is None else dense_count(self.layout.inputs)

    @property
    def num_dense_outputs(self) -> int:
        """The number of outputs of the forward graph."""
        return self.analysis.num_forward_outputs if self.layout is None else self.layout.num_dense_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInputs:
    """The values of the plan's slots: the caller's, and the same with fake tensors.

    A trace changes the fake tensors, so that every trace needs new ones."""

    plan: InputPlan
    values: tuple[Any, ...]
    fakes: tuple[Any, ...]
    fake_mode: FakeTensorMode


@dataclass(frozen=True, slots=True, kw_only=True)
class JointOptions:
    """trace: options of the tracer.
    wants_backward: whether gradients are traced; None for "if anything has one".
    has_tangents: False where the one differentiable output is a scalar whose tangent is 1.
    keeps_captured: tensors of closures and globals become constants of the graph, as in an exported graph."""

    trace: TraceOptions
    wants_backward: bool | None = None
    has_tangents: bool = True
    keeps_captured: bool = False


def trace_program(
    function: FlatFunction, inputs: TraceInputs, options: JointOptions, needs: TraceNeeds
) -> TracedProgram:
    """Trace `function(*arguments)`, which returns a flat sequence, together with its backward.

    Raises NeedsMore if the program needs more than `needs` of the trace. Errors of the program are not caught.
    """
    state = _JointTraceState(function, inputs, options, needs)

    def run(primals: list[Any]) -> list[Any]:
        return state.run(primals)

    if hasattr(function, "_orig_mod"):  # the trace notes calls of its submodules
        run._orig_mod = function._orig_mod  # type: ignore[attr-defined]
    trace_options = replace(options.trace, uses_python_kernels=needs.python_kernels)
    try:
        with _surroundings():
            dense = [part for slot in inputs.fakes for part in dense_parts(slot)]
            graph_module = Trace(trace_options).run(run, (dense,))
    except DataDependentFakeRead as error:
        if needs.python_kernels or trace_options.tracing_mode == "symbolic":
            raise
        raise NeedsMore(replace(needs, python_kernels=True)) from error
    return state.traced(graph_module)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradients:
    """What the trace recorded of the backward; empty by default, for a program without one."""

    backward: Backward | None = None
    by_leaf: tuple[torch.Tensor | None, ...] = ()
    tangents: tuple[TangentInfo, ...] = ()
    given_unread: tuple[frozenset[int], ...] = ()
    adding: tuple[frozenset[int], ...] = ()
    freed_together: tuple[frozenset[int], ...] = ()
    lacks_formula: bool = False
    calls_backward: bool = False

    @property
    def returned(self) -> list[torch.Tensor]:
        """The gradients that the graph returns."""
        return [gradient for gradient in self.by_leaf if gradient is not None]


class _JointTraceState:
    """Runs a program and its backward inside a trace, and analyses them. One per trace."""

    def __init__(self, function: FlatFunction, inputs: TraceInputs, options: JointOptions, needs: TraceNeeds) -> None:
        values = inputs.values
        self.function = function
        self.inputs = inputs
        self.options = options
        self.needs = needs
        self.plan = inputs.plan
        self.is_leaf = [not isinstance(value, torch.Tensor) or value.is_leaf for value in values]
        self.analysis: ProgramAnalysis | None = None
        self.tangents: list[torch.Tensor] = []
        self.backward_writes: dict[int, torch.Tensor] = {}  # slot -> the input as the backward finds it
        self.leaves: list[Any] = []
        self.captured = CapturedInputsMode(self, inputs.fake_mode, values) if needs.captured_tensors else None
        self.slots = RealSlotsMode(self, values) if options.keeps_captured else None
        self.has_wrappers = needs.wrappers or any(layout_of(slot) is not None for slot in inputs.fakes)
        self.outer: OuterGraphMode | None = None
        self.is_view = [isinstance(value, torch.Tensor) and value._base is not None for value in values]
        self.reread_slots = frozenset(
            i for i, value in enumerate(values) if self.is_view[i] and is_read_otherwise(value)
        )
        self._assignments: DataAssignmentsMode | None = None
        self._reads_storages = False
        self._replaces_parts = False
        self._is_in_backward = False
        self._makes_leaf = False  # whether gradients end at a leaf of the program alone
        self._enables_gradients = False  # whether the program ran any op in grad mode
        self._forward = ForwardOutputsState()

    def run(self, primals: list[Any]) -> list[Any]:
        """Record the program and its backward. Returns the outputs of the graph."""
        self._watch_recording()
        self._prepare_inputs(primals)
        arguments, derived = self._make_arguments()
        results = self._run_program(arguments)
        if not self.options.keeps_captured:
            refuse_retained([*results, *self._inputs])
        self._put = set() if self.outer is not None else self._put_inputs()
        self._left = self._left_places()
        with paused_recordings():
            infos, changes, outputs = self._analyse(results, arguments, derived)
        parts = [
            part for value in self._forward.values for part in dense_parts(value) if isinstance(part, torch.Tensor)
        ]
        before = [(part, self.recording.node_of(part)) for part in parts]
        gradients = self._record_gradients()
        self._read_written_inputs_late(before)
        self.analysis = self._program_analysis(infos, changes, results, outputs, gradients)
        if self.outer is not None:
            return self.outer.flattened(self.leaves, self._forward.values, gradients.returned, self.tangents)
        return [*self._forward.values, *gradients.returned, *self.backward_writes.values()]

    def traced(self, graph_module: torch.fx.GraphModule) -> TracedProgram:
        """The result of the trace that recorded `graph_module`."""
        graph = graph_module.graph
        graph.set_codegen(PlainCodeGen())
        copy_forward_provenance(graph)
        assert self.analysis is not None
        if not self.analysis.has_backward:
            _rename_placeholders(graph, "arg{}_1")
        elif self.analysis.refused:  # fx does not use names of erased placeholders again
            first = dense_count([layout_of(leaf) for leaf in self.leaves])
            _rename_placeholders(graph, "tangents_{}", first=first, start=1)
        graph_module.recompile()
        return TracedProgram(
            graph_module=graph_module,
            analysis=self.analysis,
            plan=self.plan,
            example_inputs=tuple(self.leaves),
            example_tangents=tuple([part for tangent in self.tangents for part in dense_parts(tangent)]),
            example_backward_writes=tuple(self.backward_writes.values()),
            layout=None if self.outer is None else self.outer.layout,
            fake_mode=self.inputs.fake_mode,
            captured=() if self.captured is None else tuple(self.captured.tensors),
        )

    def _watch_recording(self) -> None:
        trace = current_trace()
        assert trace is not None
        assert trace.recording is not None
        self.recording = trace.recording
        self.builder = trace.builder
        self.builder.annotators.append(self._annotate)
        self._decomposed = DecomposedViewsState(self.recording)
        self.recording.on_decomposed = self._decomposed.record
        self.recording.on_moved = refuse_unseen if self.needs.assignments else self._need_assignments
        for (
            tensor,
            tracked,
        ) in self.recording.tracker.items():  # placeholders were tracked before the callbacks were set
            self.recording.track(tensor, tracked.node)

    def _need_assignments(self, moved: torch.Tensor) -> NoReturn:
        raise NeedsMore(replace(self.needs, assignments=True))

    def _need_captured(self, tensor: torch.Tensor) -> NoReturn:
        """Raises UnexpectedFake for a fake tensor: it has no data, and cannot become an input."""
        if isinstance(tensor, FakeTensor):
            raise UnexpectedFake(tensor)
        raise NeedsMore(replace(self.needs, captured_tensors=True))

    def _captured_in_backward(self, tensor: torch.Tensor) -> None:
        """Let a tensor of a closure or global, which an op of the backward uses, be an input of the graph.

        Raises NeedsMore if it is none so far: no input can be added after the tangents.
        """
        if isinstance(tensor, FakeTensor):
            return
        sources = [mode for mode in (self.captured, self.slots) if mode is not None]
        known = next((found for mode in sources if (found := mode.known_input(tensor)) is not None), None)
        if known is None and self.options.keeps_captured:
            return
        if known is None:
            first = (*self.needs.captured_first, tensor)
            raise NeedsMore(replace(self.needs, captured_tensors=True, captured_first=first))
        self._known.track(tensor, self._known.node_of(known))

    def _make_arguments(self) -> tuple[list[Any], list[tuple[int, torch.Tensor, Start]]]:
        """The program's arguments; for those that are views of an input, also their position and state before the program."""
        with self._outer_recording(), self._mode_of_views():
            arguments = [
                view_of_base(self._inputs[d.slot], d) if d.geometry is not None else self._inputs[d.slot]
                for d in self.plan.arguments
            ]
        pairs = enumerate(zip(arguments, self.plan.arguments, strict=True))
        return arguments, [(i, argument, Start.of(argument)) for i, (argument, d) in pairs if d.geometry]

    def _record_gradients(self) -> _Gradients:
        answers = AnswersState(self.recording.tracker.find, self.builder.root)
        differentiable = self._forward.differentiable
        self.recording.on_captured = self._captured_in_backward
        with answers.recorded(differentiable.values()):
            backward = self._backward()
        self.recording.on_captured = None
        make_gradients_plain(self.builder.graph)
        if backward is None:
            return _Gradients(by_leaf=(None,) * len(self.leaves))
        remaining = iter(backward.gradients)
        by_leaf = tuple([next(remaining) if _has_gradient(leaf) else None for leaf in self.leaves])
        positions = [list(differentiable)[o] for o in backward.outputs]
        outs = [differentiable[position] for position in positions]
        unread: tuple[frozenset[int], ...] = ()
        if len(outs) > 1 and self.tangents:
            note_constants(self.builder.graph, outs)
            pairs = [(leaf, g) for leaf, g in zip(self.leaves, by_leaf, strict=True) if g is not None]
            with paused_recordings():
                unread = given_unread(self.builder.graph, outs, self.tangents, pairs, self.recording.node_of, answers)
        return _Gradients(
            backward=backward,
            by_leaf=by_leaf,
            tangents=tuple(
                TangentInfo(position=p, geometry=Geometry.of(t), dtype=t.dtype)
                for p, t in zip(positions, self.tangents, strict=False)
            ),
            given_unread=unread,
            adding=answers.adding(outs),
            freed_together=freed_together(outs),
            lacks_formula=lacks_formula(outs),
            calls_backward=bool(backward.refused) and calls_backward(list(differentiable.values())),
        )

    def _read_written_inputs_late(self, before: Sequence[tuple[torch.Tensor, Any]]) -> None:
        """Let the backward read the inputs that it writes to when it runs: each gets a placeholder in the backward graph.

        before: the forward outputs with their nodes before the backward, for whose values the graph returns them."""
        graph = self.builder.graph
        name_writes(graph)
        if not writes_in_backward(graph):
            return
        aliases = AliasMap(graph, enlarges=True)
        dense = [n for n in graph.nodes if n.op == "placeholder"]
        written = inputs_written_in_backward(aliases, dense if self.outer is not None else self._placeholders)
        if written and (self.outer is not None or self.options.keeps_captured or not self.options.has_tangents):
            raise UnsupportedByRefimpl(
                seen="a backward that writes to an input, of a graph that is exported or has wrapper subclasses",
                supported="such a backward of plain tensors, in a compiled function",
                do="return the new value from the forward, or write to the input outside of the graph",
            )
        current: dict[torch.fx.Node, torch.fx.Node] = {}
        for position in written:
            given = self._placeholders[position]
            with paused_recordings(), torch.no_grad():
                value = unrelated_alias(given.meta["val"])
            number = len(self.tangents) + len(self.backward_writes) + 1
            node = current[given] = self.builder.late_placeholder(
                f"tangents_{number}", value
            )  # by this name, an input of the backward
            self.recording.track(value, node)
            self.backward_writes[position] = value
        if current:
            read_when_backward_runs(self.builder, aliases, current)
        for tensor, node in before:
            self.recording.track(tensor, node)

    def _program_analysis(
        self,
        infos: Sequence[InputInfo],
        changes: Sequence[tuple[int, InputMutation | None]],
        results: Sequence[Any],
        outputs: Sequence[OutputInfo],
        gradients: _Gradients,
    ) -> ProgramAnalysis:
        backward, index = gradients.backward, iter(range(len(gradients.by_leaf)))
        differentiable = () if backward is None else tuple(self._forward.differentiable)
        return ProgramAnalysis(
            inputs=tuple(infos),
            outputs=tuple(outputs),
            bases=tuple(self._forward.bases),
            differentiable=differentiable,
            tangents=gradients.tangents,
            gradients=tuple(None if g is None else next(index) for g in gradients.by_leaf),
            num_forward_outputs=len(self._forward.values),
            has_backward=backward is not None and bool(backward.outputs),
            enables_gradients=backward is not None and not torch.is_grad_enabled() and self._enables_gradients,
            given_unread=gradients.given_unread,
            adding=gradients.adding,
            freed_together=gradients.freed_together,
            backward_writes=tuple(self.backward_writes),
            refused=() if backward is None else tuple((differentiable[o], error) for o, error in backward.refused),
            lacks_formula=gradients.lacks_formula,
            replaces_parts=self._replaces_parts,
            calls_backward=gradients.calls_backward,
            makes_leaf=self._makes_leaf,
            calls_give_operands=self._calls_operators_of_functions()
            and (gives_operands(self.builder.graph) or has_hidden_aliases(self.builder.graph, self.builder.root)),
            hooks_inputs=any(map(is_hooked, self._inputs)),
            shrinks_storage=self._shrinks_storage(),
            reads_storages=self._reads_storages,
            hides_alias=self._hides_alias(results, outputs),
            owned=() if self.outer is not None else owned_outputs(outputs),
            argument_mutations=tuple((i, mutation) for i, mutation in changes if mutation is not None),
        )

    def _calls_operators_of_functions(self) -> bool:
        return any(isinstance(node.target, HigherOrderOperator) for node in self.builder.graph.nodes)

    def _shrinks_storage(self) -> bool:
        """Whether an input has less memory than it had, in the same storage: no operator does that."""
        pairs = zip(self._inputs, self._starts, strict=True)
        return any(start is not None and start.has_less_memory(tensor) for tensor, start in pairs)

    def _hides_alias(self, results: Sequence[Any], outputs: Sequence[OutputInfo]) -> bool:
        """Whether a result shares memory with an input, and the graph computes it as a tensor of its own.

        An input that `torch.sin(x, out=y)` enlarges is the operator's result from there on, and its views are views of that."""
        pairs = zip(self._inputs, self._starts, strict=True)
        kept = {s.storage for t, s in pairs if s is not None and s.storage is not None and not s.is_elsewhere(t)}
        own = [
            result
            for result, info in zip(results, outputs, strict=True)
            if info.kind in (OutputKind.FRESH, OutputKind.VIEW_OF_INTERMEDIATE) and not info.is_put
        ]
        return any(Geometry.of(result) is not None and storage_key(result) in kept for result in own)

    def _prepare_inputs(self, primals: list[Any]) -> None:
        self._inputs: list[Any] = []
        self._starts: list[Start | None] = []
        self._accumulated: list[Any] = []
        self._placeholders = [n for n in self.builder.graph.nodes if n.op == "placeholder"]
        self._known: RecordingMode | OuterGraphMode = self.recording
        if self.has_wrappers:
            self.outer = self._known = OuterGraphMode(self.recording)
            primals = self.outer.slots_of(list(self.inputs.fakes), primals)
            self._placeholders = [self.outer.placeholder(slot) for slot in primals]
        for leaf, is_leaf in zip(primals, self.is_leaf, strict=True):
            self._add_input(leaf, is_leaf)
        for tensor in self.needs.captured_first:
            assert self.captured is not None
            self.captured.replaced(tensor)

    def _run_program(self, arguments: list[Any]) -> list[Any]:
        wrappers = [(one, dense_parts(one)) for one in self._inputs if layout_of(one) is not None]
        with contextlib.ExitStack() as stack:
            eager = stack.enter_context(EagerResultsMode(self._decomposed.own, self.recording.tracker))
            if self.needs.assignments:
                mode = DataAssignmentsMode(None if self.outer is not None else self.recording)
                self._assignments = stack.enter_context(mode)
            if self.needs.remade_views:
                stack.enter_context(RemadeViewsMode(self.recording))
            if self.needs.scalar_masks:
                stack.enter_context(ScalarMasksMode())
            results = self._run_function(arguments)
        self._replaces_parts = any(
            part is not before
            for wrapper, parts in wrappers
            for part, before in zip(dense_parts(wrapper), parts, strict=True)
        )
        self._reads_storages = eager.reads_storages
        if self._assignments is not None:
            self._assignments.update_views()
        self.recording.check_memory([t for t, _ in self.recording.tracker.items()])  # what backward reads among them
        self.recording.on_moved = self.recording.on_decomposed = None
        return results

    def _run_function(self, arguments: list[Any]) -> list[Any]:
        self._enables_gradients = False  # views of bases were not made by the program
        if self.captured is None:
            self.recording.on_captured = None if self.options.keeps_captured else self._need_captured
            slots = contextlib.nullcontext() if self.slots is None else closed_over_by(self.slots)
            with slots, self._outer_recording():
                results = list(self.function(*arguments))
        else:
            with closed_over_by(self.captured), self._outer_recording():
                results = [self.captured.replaced(r) for r in self.function(*arguments)]
        self.recording.on_captured = None
        if self.outer is not None:
            self.outer.node_of(results)
        elif any(layout_of(result) is not None for result in results):
            raise NeedsMore(replace(self.needs, wrappers=True))
        else:  # a constant, which no operator has read, has its node before the graph is analysed
            self._known.node_of(results)
        return results

    def _analyse(
        self, results: list[Any], arguments: list[Any], derived: list[tuple[int, torch.Tensor, Start]]
    ) -> tuple[list[InputInfo], list[tuple[int, InputMutation | None]], list[OutputInfo]]:
        name_writes(self.builder.graph)
        graph = self.builder.graph if self.outer is None else self.outer.graph
        known = self._decomposed
        self._aliases = AliasMap(
            graph, enlarges=True, decomposed=known.calls, owners=known.owners, follows_autograd=True
        )
        for position, leaf in enumerate(self.leaves):
            if _accumulated(leaf) != self._accumulated[position]:
                raise GradientInProgram(position)
        infos = [self._input_info(i, t) for i, t in enumerate(self._inputs)]
        changes: list[tuple[int, InputMutation | None]] = []
        for i, tensor, start in derived:
            is_put = any(step.node.target in SET_OPS for step in self._aliases.calls_to(self._known.node_of(tensor)))
            mutation = geometry_change_of(tensor, start, len(self._forward.values), is_put=is_put)
            if mutation is not None:
                self._forward.add(tensor)
                mutation = self._with_numbers(mutation)
            changes.append((i, mutation))
        state = OutputAnalysisState(
            self._forward,
            self._aliases,
            self._placeholders,
            self._known.node_of,
            self._known.tracker,
            torch.fx.Proxy if self.outer is None else self.outer.value_of,
            replays=self.options.has_tangents,
            inference_slots=frozenset(
                i for i, v in enumerate(self.inputs.values) if isinstance(v, torch.Tensor) and v.is_inference()
            ),
            gradient_slots=frozenset(i for i, leaf in enumerate(self.leaves) if _has_gradient(leaf)),
            inputs=self._inputs if self.outer is None else None,
            reread_slots=self.reread_slots,
        )

        def placed(tensor: torch.Tensor, mutation: InputMutation | None) -> InputMutation | None:
            if mutation is None or not mutation.sets_storage:
                return mutation
            placement = state.placement_of(tensor, mutation.position)
            return replace(mutation, placement=placement, assigns_data=state.assigns_data(tensor))

        tensors = [(self._inputs[i], info.mutation) for i, info in enumerate(infos)]
        tensors += [(arguments[i], mutation) for i, mutation in changes]
        moved = [(t, mutation.position) for t, mutation in tensors if mutation is not None and mutation.sets_storage]
        outputs = state.analyse(results, arguments, moved)
        infos = [replace(info, mutation=placed(t, info.mutation)) for t, info in zip(self._inputs, infos, strict=True)]
        changes = [(i, placed(arguments[i], mutation)) for i, mutation in changes]
        return infos, changes, outputs

    def _mode_of_views(self) -> contextlib.AbstractContextManager[Any]:
        """Arguments that are views of a base are made in grad mode, also if the program is called in no_grad mode."""
        has_views = any(derived.geometry for derived in self.plan.arguments)
        if not has_views or torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return contextlib.nullcontext()
        return torch.enable_grad()

    def _outer_recording(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.outer is None else self.outer

    def _annotate(self, node: torch.fx.Node) -> None:
        note_grad_mode(node)
        mark_draw(node)
        note_autograd_step(node, is_backward=self._is_in_backward)
        if self._is_in_backward:
            node.meta["partitioner_tag"] = IS_BACKWARD
            note_history(node, self.recording)
            return
        self._enables_gradients |= torch.is_grad_enabled()
        if self.outer is None:
            needs = with_needs_of(node, self.needs)
            if needs is not self.needs:
                raise NeedsMore(needs)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the trace has a node for the tensor."""
        return self.recording.tracker.find(tensor) is not None

    def input_at(self, position: int) -> Any:
        """The tensor that the program gets for a slot."""
        return self._inputs[position]

    def add_captured(self, fake: torch.Tensor, *, is_leaf: bool) -> Any:
        """Add a placeholder for a tensor of a closure or global. Returns the tensor that the program uses in its place."""
        with paused_recordings():
            number = sum(n.op == "placeholder" for n in self.builder.graph.nodes) + 1
            node = self.builder.late_placeholder(f"primals_{number}", fake)
            self.recording.track(fake, node)
            if self.outer is not None:
                node = self.outer.placeholder(fake)
        self._placeholders.append(node)
        self.is_leaf.append(is_leaf)
        return self._add_input(fake, is_leaf)

    def _add_input(self, leaf: Any, is_leaf: bool) -> Any:
        value = self._program_input(leaf, is_leaf)
        if self.needs.remade_views and len(self.leaves) < len(self.is_view) and self.is_view[len(self.leaves)]:
            # `as_strided_` of a view changes its geometry, and the base keeps all its elements.
            value = self._as_view(value)
        self.leaves.append(leaf)
        self._inputs.append(value)
        self._starts.append(Start.of(value) if isinstance(value, torch.Tensor) else None)
        self._accumulated.append(_accumulated(leaf))
        return value

    def _program_input(self, leaf: Any, is_leaf: bool) -> Any:
        """The tensor that the program gets for a slot: a leaf, or a tensor with a history, like the caller's."""
        if not isinstance(leaf, torch.Tensor) or is_leaf or not leaf.requires_grad or torch.is_inference_mode_enabled():
            return leaf
        with paused_recordings(), torch.enable_grad():  # the program may enable grad mode itself
            inner = with_history(leaf)
            tracked = self._known.tracker.find(leaf)
            if tracked is not None:
                self._known.track(inner, tracked.node)
        return inner

    def _as_view(self, value: torch.Tensor) -> torch.Tensor:
        with paused_recordings(), torch.enable_grad():
            view = torch.ops.aten.alias.default(value)
            tracked = self._known.tracker.find(value)
            if tracked is not None:
                self._known.track(view, tracked.node)
        return view

    def _input_info(self, position: int, tensor: Any) -> InputInfo:
        start = self._starts[position]
        if start is None:
            return InputInfo(is_tensor=False)
        mutation = mutation_of(
            tensor,
            start,
            self.builder.graph,
            is_written=self._is_written(position),
            is_put=position in self._put,
            position=len(self._forward.values),
        )
        if mutation is not None:
            self._forward.add(tensor)
            is_written = mutation.writes_data or mutation.sets_storage
            before = self._before_assignment(tensor) if mutation.sets_storage and tensor.requires_grad else None
            if before is not None and is_same(Geometry.of(before), start.geometry):
                mutation = replace(mutation, is_visible_after_move=False)
                self._left[position] = before if mutation.is_visible_to_autograd else self._left[position]
            elif mutation.is_visible_to_autograd and is_written and tensor.requires_grad:
                self._forward.differentiable[mutation.position] = tensor
            mutation = self._with_numbers(mutation)
            left = self._left.get(position)
            if left is not None and mutation.writes_data:
                mutation = replace(mutation, left_position=self._forward.add(left))
                is_differentiable = left is before or mutation.position in self._forward.differentiable
                if is_differentiable and left.requires_grad:
                    self._forward.differentiable[len(self._forward.values) - 1] = left
        return InputInfo(
            is_tensor=True,
            requires_grad=start.requires_grad,
            is_leaf=self.is_leaf[position],
            becomes_leaf=is_new_leaf(tensor) and not start.requires_grad,
            mutation=mutation,
        )

    def _before_assignment(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if self._assignments is None else self._assignments.before(tensor)

    def _with_numbers(self, mutation: InputMutation) -> InputMutation:
        geometry = mutation.geometry
        given = () if geometry is None else (*geometry.size, *geometry.stride, geometry.offset)
        if self.outer is not None or all(type(n) is int for n in given):
            return mutation
        numbers = tuple(n if type(n) is int else ForwardOutput(self._forward.add(n)) for n in given)
        return replace(mutation, numbers=numbers)

    def _left_places(self) -> dict[int, torch.Tensor]:
        """Views of the memory of inputs whose geometry changes: the epilogue writes it before it changes the geometry."""
        if self.outer is not None:
            return {}
        pairs = enumerate(zip(self._inputs, self._starts, strict=True))
        views: dict[int, torch.Tensor | None] = {}
        for i, (tensor, start) in pairs:
            if start is None:
                continue
            if i in self._put:  # its old memory is that of the placeholder
                placeholder = self._placeholders[i]
                memory = views[i] = unrelated_alias(placeholder.meta["val"])
                self._known.track(memory, placeholder)
            else:
                views[i] = view_of_left_places(tensor, start)
        return {i: view for i, view in views.items() if view is not None}

    def _put_inputs(self) -> set[int]:
        """Inputs whose memory the program replaced by `set_` or `x.data = y`, perhaps by other memory of the same storage."""
        if not any(node.target in SET_OPS for node in self.builder.graph.nodes):
            return set()
        aliases = AliasMap(self.builder.graph, enlarges=True)
        found = [(i, self._known.tracker.find(t)) for i, t in enumerate(self._inputs) if isinstance(t, torch.Tensor)]
        return {
            i
            for i, tracked in found
            if tracked is not None and any(s.node.target in SET_OPS for s in aliases.calls_to(tracked.node))
        }

    def _is_written(self, position: int) -> bool:
        if self.outer is not None:
            return self.outer.is_written(self._inputs[position])
        return bool(self._aliases.writes_to(self._placeholders[position]))

    def _backward(self) -> Backward | None:
        """Record the backward. None if no output has a gradient, or none is wanted."""
        targets = [leaf for leaf in self.leaves if _has_gradient(leaf)]
        outputs = list(self._forward.differentiable.values())
        if outputs and not targets and not self.options.keeps_captured:
            self._makes_leaf = True
            return None
        if outputs and not targets and self.options.wants_backward is not False:
            raise UnsupportedByRefimpl(
                seen="a result whose gradient ends at a leaf that the program itself creates",
                supported="gradients that end at arguments and captured tensors",
                do="pass that tensor as an argument",
            )
        if self.options.wants_backward is False or not outputs:
            return None
        self._is_in_backward = True
        try:
            with eager_gradients(outputs), noted_layouts(self.recording):
                return trace_backward(
                    outputs,
                    targets,
                    self.builder.graph,
                    self._tangent if self.options.has_tangents else None,
                    self._forget_tangents,
                )
        finally:
            self._is_in_backward = False

    def _tangent(self, out: torch.Tensor) -> torch.Tensor:
        """A placeholder for a tangent, with the strides of a dense tensor like the output."""
        with paused_recordings(), torch.no_grad():
            if self.outer is not None:
                tangent = self.outer.tangent(out)
            else:
                is_dense = out.layout is torch.strided
                like = torch.empty_like(out, memory_format=torch.preserve_format) if is_dense else out
                tangent = unrelated_alias(like)
                node = self.builder.late_placeholder(f"tangents_{len(self.tangents) + 1}", tangent)
                self.recording.track(tangent, node)
        self.tangents.append(tangent)
        return tangent

    def _forget_tangents(self) -> None:
        self.tangents.clear()
        if self.outer is not None:
            self.outer.forget_tangents()
        for node in [n for n in self.builder.graph.nodes if n.op == "placeholder"]:
            if node.name.startswith("tangents_"):
                self.builder.graph.erase_node(node)


def _accumulated(leaf: Any) -> tuple[int, int] | None:
    """Identifies the gradient that a leaf holds: another value means that it was replaced or accumulated into."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_leaf or leaf.grad is None:
        return None
    return id(leaf.grad), version_of(leaf.grad)


def _has_gradient(leaf: Any) -> bool:
    """Whether it needs a gradient: not where it required none, and a write of the program gave it a history."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf


def _rename_placeholders(graph: torch.fx.Graph, pattern: str, *, first: int = 0, start: int = 0) -> None:
    """Rename the placeholders from the one at `first` on, with numbers from `start` on."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for number, node in enumerate(placeholders[first:], start):
        node.name = node.target = pattern.format(number)


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Within, the random state is restored afterwards, backward runs in this thread, and hooks on saved tensors are off."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        start_draws()
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(without_saved_tensors_hooks())
        yield
