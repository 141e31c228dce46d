"""The joint trace: a program and its backward in one graph, with the program's writes and views still in it.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py fn_prepped_for_autograd, create_joint;
collect_metadata_analysis.py run_functionalized_fw_and_collect_metadata
Differs: one trace. The program runs with its own in-place ops on tensors whose autograd is the real one, so that gradients of
mutation are autograd's own; writes and views leave the graph afterwards (refimpl.functionalize). What aliases what and what is
written is read off the same trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    FakeTensorMode,
    PlainCodeGen,
    identity_saved_tensors_hooks_if_any,
    storage_key,
)
from refimpl.aot.analysis import (
    Geometry,
    InputInfo,
    InputMutation,
    OutputInfo,
    OutputKind,
    ProgramAnalysis,
    TangentInfo,
)
from refimpl.aot.backward_provenance import copy_forward_provenance, note_autograd_step
from refimpl.aot.captured_inputs import CapturedInputsMode, refuse_captured
from refimpl.aot.errors import GradientInProgram
from refimpl.aot.fake_arguments import unrelated_alias
from refimpl.aot.input_plan import InputPlan, view_of_base
from refimpl.aot.outer_graph import OuterGraphMode, WrapperResult
from refimpl.aot.repeated_draws import mark_draw, start_draws
from refimpl.aot.replay import has_custom_function, replay_steps
from refimpl.aot.subclasses import ProgramLayout, dense_count, dense_parts, layout_of
from refimpl.aot.unannotated_writes import name_writes
from refimpl.errors import RefimplError, UnsupportedByRefimpl
from refimpl.functionalize.aliases import AliasMap
from refimpl.trace.options import TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.tracing import Trace, current_trace

FlatFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """The graph's placeholders are the plan's slots, then tangents. It returns forward outputs, then gradients."""

    graph_module: torch.fx.GraphModule
    analysis: ProgramAnalysis
    plan: InputPlan
    example_inputs: tuple[Any, ...]
    example_tangents: tuple[Any, ...]
    fake_mode: FakeTensorMode
    layout: ProgramLayout | None = None  # of wrappers among inputs and outputs, where there are any
    captured: tuple[torch.Tensor, ...] = ()  # tensors of closures and globals: placeholders after the plan's slots

    def dense_slots(self, slots: Sequence[Any]) -> list[Any]:
        """The values of the graph's placeholders."""
        return list(slots) if self.layout is None else self.layout.dense_inputs(slots)

    def dense_positions(self, slot: int) -> Sequence[int]:
        """Of the placeholders for one slot."""
        return (slot,) if self.layout is None else self.layout.dense_positions(slot)

    @property
    def num_dense_slots(self) -> int:
        """Of the placeholders for slots."""
        return len(self.analysis.inputs) if self.layout is None else dense_count(self.layout.inputs)

    @property
    def num_dense_outputs(self) -> int:
        """Of the forward graph."""
        return self.analysis.num_forward_outputs if self.layout is None else self.layout.num_dense_outputs


@dataclass(frozen=True, slots=True)
class _Start:
    """What a tensor was before the program ran."""

    grad_fn: Any
    version: int
    geometry: Geometry | None
    storage: int | None
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Start:
        geometry = Geometry.of(tensor)
        return cls(
            tensor.grad_fn,
            _version_of(tensor),
            geometry,
            None if geometry is None else storage_key(tensor),
            tensor.requires_grad,
        )


def trace_program(
    function: FlatFunction,
    slots: Sequence[Any],
    plan: InputPlan,
    fake_mode: FakeTensorMode,
    options: TraceOptions,
    *,
    is_leaf: Sequence[bool],
    wants_backward: bool | None = None,
    has_tangents: bool = True,
    real_slots: Sequence[Any] = (),
    lifts_captured: bool = False,
    keeps_captured: bool = False,
    has_wrappers: bool = False,
) -> TracedProgram:
    """Trace `function(*arguments)`, which returns a flat sequence.

    slots: fake tensors (see refimpl.aot.fake_arguments) and other values; is_leaf: of each slot, whether the real tensor is a leaf;
    wants_backward: whether gradients are traced, None for "if anything has one"; has_tangents: False where the one
    differentiable output is a scalar whose incoming gradient is 1.
    real_slots: what the slots were made from. lifts_captured: tensors of closures and globals become inputs as well;
    keeps_captured: they are constants of the graph, as an exported one has them.
    has_wrappers: traceable wrapper subclasses may be among the results; they may be among the slots in any case.
    Whatever the program raises goes through; WrapperResult, if it returns one and that was not said; CapturedTensor, if it uses one and neither was asked for.
    """
    state = _JointTraceState(function, plan, is_leaf, wants_backward=wants_backward, has_tangents=has_tangents)
    state.keeps_captured = keeps_captured
    if has_wrappers or any(layout_of(slot) is not None for slot in slots):
        state.wrapped_slots = list(slots)
    if lifts_captured:
        state.captured = CapturedInputsMode(state, fake_mode, real_slots)

    def run(primals: list[Any]) -> list[Any]:
        return state.run(primals)

    if hasattr(function, "_orig_mod"):  # the module whose calls the trace notes
        run._orig_mod = function._orig_mod  # type: ignore[attr-defined]
    with _surroundings():
        dense = [part for slot in slots for part in dense_parts(slot)]
        graph_module = Trace(options).run(run, (dense,))
    graph = graph_module.graph
    graph.set_codegen(PlainCodeGen())
    copy_forward_provenance(graph)
    assert state.analysis is not None
    if state.analysis.backward_error is not None:
        _erase_backward(graph, dense_count([layout_of(leaf) for leaf in state.leaves]))
        state.tangents.clear()
    if not state.analysis.has_backward:
        _rename_placeholders(graph, "arg{}_1")
    graph_module.recompile()
    return TracedProgram(
        graph_module=graph_module,
        analysis=state.analysis,
        plan=plan,
        example_inputs=tuple(state.leaves),
        example_tangents=tuple([part for tangent in state.tangents for part in dense_parts(tangent)]),
        layout=None if state.outer is None else state.outer.layout,
        fake_mode=fake_mode,
        captured=() if state.captured is None else tuple(state.captured.tensors),
    )


class _JointTraceState:
    """Runs inside of the trace. Mutable; one per trace."""

    def __init__(
        self,
        function: FlatFunction,
        plan: InputPlan,
        is_leaf: Sequence[bool],
        *,
        wants_backward: bool | None,
        has_tangents: bool,
    ) -> None:
        self.function = function
        self.plan = plan
        self.is_leaf = list(is_leaf)
        self.wants_backward = wants_backward
        self.has_tangents = has_tangents
        self.analysis: ProgramAnalysis | None = None
        self.tangents: list[torch.Tensor] = []
        self.leaves: list[Any] = []
        self.captured: CapturedInputsMode | None = None
        self.keeps_captured = False
        self.wrapped_slots: list[Any] | None = None  # where wrapper subclasses may be among inputs and results
        self.outer: OuterGraphMode | None = None
        self._is_in_backward = False
        self._forward_outputs: list[Any] = []
        self._differentiable: dict[int, torch.Tensor] = {}  # forward output position -> tensor with a gradient

    def run(self, primals: list[Any]) -> list[Any]:
        trace = current_trace()
        assert trace is not None and trace.recording is not None
        self.recording = trace.recording
        self.builder = trace.builder
        self.builder.annotators.append(self._annotate)
        self._inputs: list[Any] = []
        self._starts: list[_Start | None] = []
        self._accumulated: list[Any] = []
        self._placeholders = [n for n in self.builder.graph.nodes if n.op == "placeholder"]
        self._known: RecordingMode | OuterGraphMode = self.recording
        if self.wrapped_slots is not None:
            self.outer = self._known = OuterGraphMode(self.recording)
            primals = self.outer.slots_of(self.wrapped_slots, primals)
            self._placeholders = [self.outer.placeholder(slot) for slot in primals]
        for leaf, is_leaf in zip(primals, self.is_leaf, strict=True):
            self._add_input(leaf, is_leaf)
        inputs, leaves = self._inputs, self.leaves
        arguments = [
            view_of_base(inputs[d.slot], d) if d.geometry is not None else inputs[d.slot] for d in self.plan.arguments
        ]
        derived = [
            (i, a, _Start.of(a))
            for i, (a, d) in enumerate(zip(arguments, self.plan.arguments, strict=True))
            if d.geometry
        ]
        if self.captured is None:
            self.recording.on_captured = None if self.keeps_captured else refuse_captured
            with self._outer_recording():
                results = list(self.function(*arguments))
        else:
            with self.captured, self._outer_recording():
                results = [self.captured.replaced(r) for r in self.function(*arguments)]
        self.recording.on_captured = None
        if self.outer is not None:
            self.outer.node_of(results)
        elif any(layout_of(result) is not None for result in results):
            raise WrapperResult
        with paused_recordings():
            name_writes(self.builder.graph)
            self._aliases = AliasMap(self.builder.graph if self.outer is None else self.outer.graph)
            for position, leaf in enumerate(leaves):
                if _accumulated(leaf) != self._accumulated[position]:
                    raise GradientInProgram(position)
            infos = [self._input_info(i, t) for i, t in enumerate(inputs)]
            changes = [(i, self._derived_mutation(tensor, start)) for i, tensor, start in derived]
            outputs, bases = self._outputs(results, inputs, arguments)
        gradients, error = self._backward(leaves)
        has_backward = bool(self._differentiable) and gradients is not None
        found = [] if gradients is None else gradients
        returned = [g for g in found if g is not None]
        index = iter(range(len(returned)))
        self.analysis = ProgramAnalysis(
            inputs=tuple(infos),
            outputs=tuple(outputs),
            bases=tuple(bases),
            differentiable=tuple(self._differentiable) if has_backward or error is not None else (),
            tangents=tuple(
                TangentInfo(position=p, geometry=Geometry.of(t), dtype=t.dtype)
                for p, t in zip(self._differentiable, self.tangents, strict=False)
            ),
            gradients=tuple(None if g is None else next(index) for g in found) or (None,) * len(infos),
            num_forward_outputs=len(self._forward_outputs),
            has_backward=has_backward,
            enables_gradients=not torch.is_grad_enabled() and bool(self._differentiable),
            backward_error=error,
            argument_mutations=tuple((i, mutation) for i, mutation in changes if mutation is not None),
        )
        if self.outer is not None:
            return self.outer.flattened(leaves, self._forward_outputs, returned, self.tangents)
        return [*self._forward_outputs, *returned]

    def _outer_recording(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.outer is None else self.outer

    def _annotate(self, node: torch.fx.Node) -> None:
        node.meta["grad_mode"] = torch.is_grad_enabled()
        mark_draw(node)
        note_autograd_step(node, is_backward=self._is_in_backward)
        if self._is_in_backward:
            node.meta["partitioner_tag"] = "is_backward"

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the trace has a node for the tensor."""
        return self.recording.tracker.find(tensor) is not None

    def input_at(self, position: int) -> Any:
        """What the program sees of a slot."""
        return self._inputs[position]

    def add_captured(self, fake: torch.Tensor, *, is_leaf: bool) -> Any:
        """A placeholder for a tensor that the program takes from around it; returns what the program is to see of it."""
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
        self.leaves.append(leaf)
        self._inputs.append(value)
        self._starts.append(_Start.of(value) if isinstance(value, torch.Tensor) else None)
        self._accumulated.append(_accumulated(leaf))
        return value

    def _program_input(self, leaf: Any, is_leaf: bool) -> Any:
        """What the program sees of a slot: a leaf, or a tensor with a history, as the real one is."""
        if not isinstance(leaf, torch.Tensor) or is_leaf or not leaf.requires_grad or not torch.is_grad_enabled():
            return leaf
        with paused_recordings():
            inner = _WithHistory.apply(leaf)
            assert isinstance(inner, torch.Tensor)
            tracked = self._known.tracker.find(leaf)
            if tracked is not None:
                self._known.track(inner, tracked.node)
        return inner

    def _input_info(self, position: int, tensor: Any) -> InputInfo:
        start = self._starts[position]
        if start is None:
            return InputInfo(is_tensor=False)
        mutation = self._mutation(position, tensor, start)
        if mutation is not None:
            self._forward_outputs.append(tensor)
            if mutation.is_visible_to_autograd and mutation.writes_data and tensor.requires_grad:
                self._differentiable[mutation.position] = tensor
        return InputInfo(
            is_tensor=True,
            requires_grad=start.requires_grad,
            is_leaf=self.is_leaf[position],
            becomes_leaf=_is_new_leaf(tensor) and not start.requires_grad,
            mutation=mutation,
        )

    def _derived_mutation(self, tensor: torch.Tensor, start: _Start) -> InputMutation | None:
        """Data is written through the slot that the argument views."""
        geometry = Geometry.of(tensor)
        if _same(geometry, start.geometry):
            return None
        self._forward_outputs.append(tensor)
        return InputMutation(
            writes_data=False,
            is_visible_to_autograd=True,
            bumps_version=True,
            geometry=geometry,
            resizes=False,
            sets_storage=geometry is not None and storage_key(tensor) != start.storage,
            requires_grad=tensor.requires_grad,
            position=len(self._forward_outputs) - 1,
        )

    def _mutation(self, position: int, tensor: torch.Tensor, start: _Start) -> InputMutation | None:
        placeholder = self._placeholders[position]
        writes_data = self._is_written(position)
        geometry = Geometry.of(tensor)
        sets_storage = geometry is not None and storage_key(tensor) != start.storage
        resizes = any(_is_resize(node) for node in placeholder.graph.nodes) and geometry != start.geometry
        changes_geometry = sets_storage or not _same(geometry, start.geometry)
        if not writes_data and not changes_geometry:
            return None
        return InputMutation(
            writes_data=writes_data,
            is_visible_to_autograd=tensor.grad_fn is not start.grad_fn,
            bumps_version=tensor.is_inference() or tensor._version != start.version,
            geometry=geometry if changes_geometry else None,
            resizes=resizes,
            sets_storage=sets_storage,
            requires_grad=tensor.requires_grad,
            position=len(self._forward_outputs),
        )

    def _is_written(self, position: int) -> bool:
        if self.outer is not None:
            return self.outer.is_written(self._inputs[position])
        return bool(self._aliases.writes_to(self._placeholders[position]))

    def _outputs(
        self, results: list[Any], inputs: list[Any], arguments: list[Any]
    ) -> tuple[list[OutputInfo], list[int]]:
        """What every output is; fills forward outputs with them and with the bases they need."""
        first = len(self._forward_outputs)
        self._forward_outputs += results
        input_positions = {id(t): i for i, t in reversed(list(enumerate(arguments))) if isinstance(t, torch.Tensor)}
        base_nodes = [
            self._aliases.base_of(self._known.node_of(r)) if isinstance(r, torch.Tensor) else None for r in results
        ]
        shared: dict[torch.fx.Node, set[int]] = {}
        for result, base in zip(results, base_nodes, strict=True):
            # Without tangents nobody makes views again: the caller takes what the graph returns.
            is_replayed = base is not None and base.op != "placeholder" and self.has_tangents
            if base is not None and is_replayed and not self._keeps_own_gradient(result):
                shared.setdefault(base, set()).add(id(result))
        infos: list[OutputInfo] = []
        bases: list[int] = []
        positions_of_bases: dict[torch.fx.Node, int] = {}
        seen: dict[int, int] = {}
        # A base that is an output itself serves its siblings.
        for index, (result, base) in enumerate(zip(results, base_nodes, strict=True)):
            if (
                base is not None
                and len(shared.get(base, ())) > 1
                and not self._aliases.steps_of(self._known.node_of(result))
            ):
                positions_of_bases.setdefault(base, first + index)
        for index, (result, base) in enumerate(zip(results, base_nodes, strict=True)):
            position = first + index
            if base is None:
                infos.append(OutputInfo(kind=OutputKind.CONSTANT, position=position))
                continue
            if id(result) in input_positions:
                source = input_positions[id(result)]
                infos.append(
                    OutputInfo(
                        kind=OutputKind.INPUT, position=position, source=source, requires_grad=result.requires_grad
                    )
                )
                continue
            if id(result) in seen:
                infos.append(OutputInfo(kind=OutputKind.REPEATED, position=position, source=seen[id(result)]))
                continue
            seen[id(result)] = index
            infos.append(self._output(result, base, position, shared, positions_of_bases, bases))
        return infos, bases

    def _output(
        self,
        result: torch.Tensor,
        base: torch.fx.Node,
        position: int,
        shared: dict[torch.fx.Node, set[int]],
        positions_of_bases: dict[torch.fx.Node, int],
        bases: list[int],
    ) -> OutputInfo:
        geometry, requires_grad = Geometry.of(result), result.requires_grad
        node = self._known.node_of(result)
        is_own = self._keeps_own_gradient(result)
        if base.op == "placeholder" and not is_own and base in self._placeholders:
            return OutputInfo(
                kind=OutputKind.VIEW_OF_INPUT,
                position=position,
                source=self._placeholders.index(base),
                steps=self._steps(node),
                requires_grad=requires_grad,
                geometry=geometry,
                becomes_leaf=_is_new_leaf(result),
            )
        if not is_own and len(shared.get(base, ())) > 1:
            if base not in positions_of_bases:
                positions_of_bases[base] = len(self._forward_outputs)
                bases.append(len(self._forward_outputs))
                base_tensor = self._base_tensor(result, base)
                self._forward_outputs.append(base_tensor)
            base_position = positions_of_bases[base]
            if base_position != position:
                base_tensor = self._forward_outputs[base_position]
                if (
                    isinstance(base_tensor, torch.Tensor)
                    and base_tensor.requires_grad
                    and base_tensor.grad_fn is not None
                ):
                    self._differentiable.setdefault(base_position, base_tensor)
                return OutputInfo(
                    kind=OutputKind.VIEW_OF_INTERMEDIATE,
                    position=position,
                    source=base_position,
                    steps=self._steps(node),
                    requires_grad=requires_grad,
                    geometry=geometry,
                )
        if requires_grad and result.grad_fn is not None:
            self._differentiable[position] = result
        return OutputInfo(
            kind=OutputKind.FRESH,
            position=position,
            requires_grad=requires_grad,
            geometry=geometry,
            becomes_leaf=_is_new_leaf(result),
        )

    def _base_tensor(self, view: torch.Tensor, base: torch.fx.Node) -> Any:
        """The base as a tensor of the program, where it is still there; else its node, which has no gradient."""
        known = view._base
        if known is not None:
            tracked = self._known.tracker.find(known)
            if (
                tracked is not None
                and self._aliases.base_of(tracked.node) is base
                and not self._aliases.steps_of(tracked.node)
            ):
                return known
        return torch.fx.Proxy(base) if self.outer is None else self.outer.value_of(base)

    def _steps(self, node: torch.fx.Node) -> tuple[Any, ...]:
        def number(value: torch.fx.Node) -> int:
            self._forward_outputs.append(torch.fx.Proxy(value) if self.outer is None else self.outer.value_of(value))
            return len(self._forward_outputs) - 1

        return replay_steps(self._aliases.steps_of(node), number)

    def _keeps_own_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether replaying views would lose a user's autograd.Function on the way."""
        if not tensor.requires_grad:
            return False
        steps = self._aliases.steps_of(self._known.node_of(tensor))
        return bool(steps) and has_custom_function(tensor.grad_fn, len(steps))

    def _backward(self, leaves: list[Any]) -> tuple[list[Any] | None, Exception | None]:
        """Gradients per slot (None for no gradient), or None if there is no backward, and what autograd raised."""
        targets = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        wanted = self.wants_backward
        if self._differentiable and not targets:
            raise UnsupportedByRefimpl(
                seen="a result whose gradient ends at a tensor that the program itself has made a leaf of",
                supported="gradients that end at arguments and captured tensors",
                do="pass that tensor as an argument",
            )
        if wanted is False or (wanted is None and (not self._differentiable or not targets)):
            return None, None
        outs = list(self._differentiable.values())
        incoming: list[Any] = []
        if self.has_tangents:
            for index, out in enumerate(outs):
                incoming.append(self._tangent(index, out))
        else:
            incoming = [None] * len(outs)
        self._is_in_backward = True
        try:
            found = torch.autograd.grad(outs, targets, incoming, allow_unused=True) if targets and outs else ()
        except RefimplError:
            raise
        except Exception as error:
            return None, error.with_traceback(None)
        finally:
            self._is_in_backward = False
        remaining = iter(found)
        return [
            next(remaining) if isinstance(leaf, torch.Tensor) and leaf.requires_grad and found else None
            for leaf in leaves
        ], None

    def _tangent(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """A placeholder for an incoming gradient: like the output, dense."""
        if self.outer is not None:
            with paused_recordings(), torch.no_grad():
                self.tangents.append(self.outer.tangent(out))
            return self.tangents[-1]
        with paused_recordings(), torch.no_grad():
            is_dense = out.layout is torch.strided
            tangent = unrelated_alias(torch.empty_like(out, memory_format=torch.preserve_format) if is_dense else out)
            node = self.builder.late_placeholder(f"tangents_{index + 1}", tangent)
            self.recording.track(tangent, node)
        self.tangents.append(tangent)
        return tangent


class _WithHistory(torch.autograd.Function):
    """Identity that is no view, so that the result is no leaf and its in-place history is its own."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return unrelated_alias(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


def _version_of(tensor: torch.Tensor) -> int:
    """Inference tensors have none, and need none: nothing is saved for a backward."""
    return 0 if tensor.is_inference() else tensor._version


def _accumulated(leaf: Any) -> tuple[int, int] | None:
    """Says whether the gradient that a leaf holds is another one, or was added to."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_leaf or leaf.grad is None:
        return None
    return id(leaf.grad), _version_of(leaf.grad)


def _is_resize(node: torch.fx.Node) -> bool:
    return node.target in (torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default)


def _is_new_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.grad_fn is None


def _same(a: Geometry | None, b: Geometry | None) -> bool:
    if a is None or b is None:
        return a is b
    numbers = zip((*a.size, *a.stride, a.offset), (*b.size, *b.stride, b.offset), strict=False)
    return len(a.size) == len(b.size) and all(_same_number(x, y) for x, y in numbers)


def _same_number(x: Any, y: Any) -> bool:
    if type(x) is int and type(y) is int:
        return x == y
    return x is y or getattr(getattr(x, "node", None), "expr", x) == getattr(getattr(y, "node", None), "expr", y)


def _erase_backward(graph: torch.fx.Graph, num_primals: int) -> None:
    """Removes what was recorded of a backward before autograd refused the rest."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    tangents = placeholders[num_primals:]
    backward = [n for n in graph.nodes if n.meta.get("partitioner_tag") == "is_backward"]
    for node in reversed([*tangents, *backward]):
        graph.erase_node(node)


def _rename_placeholders(graph: torch.fx.Graph, pattern: str) -> None:
    for index, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        node.name = node.target = pattern.format(index)


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Compiling leaves the random state alone, runs backward in this thread, and no hook on saved tensors sees fake ones."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        start_draws()
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(identity_saved_tensors_hooks_if_any())
        yield
