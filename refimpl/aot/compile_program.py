"""The steps from a functional program to a callable: partition, compile the graphs, wrap them.

Counterpart: torch/_functorch/_aot_autograd/graph_compile.py aot_stage2_compile
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.effects import new_tokens, number_inputs, thread_tokens, unlift_tokens, with_first_tokens
from refimpl.aot.functional_program import FunctionalProgram, ProgramFacts, ProgramRequest
from refimpl.aot.in_graph_mutations import with_mutations_in_graph
from refimpl.aot.joint.gradient_dependences import constants_behind
from refimpl.aot.joint.partial_backward import is_divisible, tangents_behind, without_new_guards, without_tangents
from refimpl.aot.joint.zero_gradients import refuse_missing_tangents, refuse_zeros
from refimpl.aot.options import AOTConfig, current_settings
from refimpl.aot.partition import default_partition
from refimpl.aot.rng import with_backward_states, with_forward_states
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
from refimpl.aot.runtime.saved_values import SavedValuesPlan, plan_saved_values
from refimpl.aot.runtime.subclass_call import WrapperTangents, with_wrapped_gradients, with_wrapped_slots
from refimpl.aot.runtime.wrapper import runtime_wrapper
from refimpl.symbolic.errors import NewGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedProgram:
    """The graphs that a compiler gets. Unless AOTConfig keeps effect tokens, the graphs create these themselves."""

    program: ProgramFacts
    analysis: ProgramAnalysis
    """What the runtime wrapper has to do around the graphs."""
    forward: torch.fx.GraphModule
    """It returns its outputs, then saved values. Without gradients it is the only graph."""
    backward: torch.fx.GraphModule | None = None
    """None without gradients, or if autograd raised for all of them: computing one then raises the error."""
    num_outputs: int = 0
    """The number of the forward's outputs that are neither tokens nor saved values."""
    forward_tokens: int = 0
    """How many effect tokens are the forward's first inputs and first outputs."""
    backward_tokens: int = 0
    """How many are the backward's last inputs and last outputs."""
    dependences: tuple[frozenset[int], ...] = ()
    histories: tuple[frozenset[int], ...] = ()
    is_dense: bool = False
    """Whether the backward has plain tensors only, writes to no input, and has no effects or random states. Only then is a part
    of it compiled for missing tangents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraphs:
    """Compiled graphs. forward: a function of the slots. backward: None for a program without gradients."""

    partitioned: PartitionedProgram
    forward: BoxedCall
    backward: BackwardGraphs | None
    saving: SavedValuesPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """`call` takes the flat list of arguments and returns the flat list of results."""

    call: FlatCall
    program: ProgramFacts


def partition(program: FunctionalProgram, config: AOTConfig) -> PartitionedProgram:
    """Split a program with gradients into a forward and a backward graph. Another program stays one graph."""
    graph_module, analysis = program.graph_module, program.analysis
    if analysis.has_backward:
        return _forward_and_backward(program, config)
    if not analysis.differentiable and _keeps_mutations(program, config):
        graph_module, analysis = with_mutations_in_graph(graph_module, analysis, program.slot_placeholders())
    tokens = len(thread_tokens(graph_module, program.traced.fake_mode).forward)
    if not _keeps_tokens(config):
        unlift_tokens(graph_module, first_outputs=tokens)
        tokens = 0
    elif tokens:
        number_inputs(graph_module.graph, "arg{}_1")
    output = graph_module.graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(results),)  # as the graphs of a partition, and as torch gives them to a compiler
    graph_module.recompile()
    return PartitionedProgram(program=program, analysis=analysis, forward=graph_module, forward_tokens=tokens)


def _keeps_tokens(config: AOTConfig) -> bool:
    return config.keeps_tokens and not current_settings().unlift_effect_tokens


def _keeps_mutations(program: FunctionalProgram, config: AOTConfig) -> bool:
    return config.keep_inference_input_mutations and program.traced.layout is None


def _forward_and_backward(program: FunctionalProgram, config: AOTConfig) -> PartitionedProgram:
    traced, random, analysis = program.traced, program.random, program.analysis
    slots = program.slot_placeholders()
    split = config.partition_fn or default_partition
    primals = [node.meta.get("val") for node in program.primals]
    tangents = [*traced.example_tangents, *traced.example_backward_writes, *random.examples]
    num_outputs = traced.num_dense_outputs + len(random.forward)
    dependences, histories = program.gradient_dependences(), program.gradient_histories()
    tokens = thread_tokens(program.graph_module, traced.fake_mode)
    keeps_tokens = _keeps_tokens(config)
    if keeps_tokens and tokens.forward:
        number_inputs(program.graph_module.graph, "primals_{}", first=1)
    forward, backward = split(
        program.graph_module,
        ([*tokens.forward, *primals], [*tangents, *tokens.backward]),
        num_fwd_outputs=len(tokens.forward) + num_outputs,
        **_static_inputs(split, range(len(tokens.forward), len(tokens.forward) + config.num_params_buffers)),
    )
    if not keeps_tokens:
        unlift_tokens(forward, first_outputs=len(tokens.forward))
        unlift_tokens(backward, last_outputs=len(tokens.backward))
    if _keeps_mutations(program, config):
        given = {node.name: node for node in forward.graph.find_nodes(op="placeholder")}
        in_forward = [None if node is None else given.get(node.name) for node in slots]
        num_tokens = len(tokens.forward) if keeps_tokens else 0
        forward, analysis = with_mutations_in_graph(forward, analysis, in_forward, num_tokens=num_tokens)
    return PartitionedProgram(
        program=program,
        analysis=analysis,
        forward=forward,
        backward=backward,
        num_outputs=num_outputs - _num_kept(program, analysis),
        forward_tokens=len(tokens.forward) if keeps_tokens else 0,
        backward_tokens=len(tokens.backward) if keeps_tokens else 0,
        dependences=dependences,
        histories=histories,
        is_dense=not program.keeps_writes
        and not tokens.backward
        and not random.backward
        and not traced.example_backward_writes
        and traced.layout is None,
    )


def _num_kept(program: ProgramFacts, analysis: ProgramAnalysis) -> int:
    """How many new values of inputs the graph writes itself: the trace returned them, and the graph does not."""
    return program.analysis.num_forward_outputs - analysis.num_forward_outputs


def _static_inputs(partition: Callable[..., Any], positions: Sequence[int]) -> dict[str, list[int]]:
    """A keyword argument with the positions of parameters and buffers, which cost no memory to save, if `partition` takes it."""
    name = "static_lifetime_input_indices"
    try:
        takes = name in inspect.signature(partition).parameters
    except (TypeError, ValueError):
        takes = False
    return {name: list(positions)} if takes and positions else {}


def compile_graphs(partitioned: PartitionedProgram, config: AOTConfig) -> CompiledGraphs:
    """Compile the forward now, and the backward when a gradient is first computed."""
    program, graph_module = partitioned.program, partitioned.forward
    is_training = bool(partitioned.analysis.differentiable)
    # A backward with symbolic sizes is compiled now, before the forward: guards that its compiler adds hold for both.
    backward = BackwardGraphs(partitioned, config) if is_training else None
    saving = None if backward is None else backward.saving(partitioned)
    compiler = config.fw_compiler if is_training else config.inference_compiler or config.fw_compiler
    assert compiler is not None
    with graph_being_compiled(config.aot_id, "forward" if is_training else "inference"):
        found = compiler(graph_module, _examples(graph_module))
    num_kept, tokens = _num_kept(program, partitioned.analysis), partitioned.forward_tokens
    returned = range(tokens, tokens + program.num_dense_outputs - num_kept)
    forward = with_traced_strides(with_first_tokens(boxed(found), tokens), found, graph_module, returned)
    if is_training:
        forward = with_answers(forward, graph_module)
    if program.random.forward:
        forward = with_forward_states(forward, replace(program.random, position=program.random.position - num_kept))
    forward = with_flat_bases(forward, program.replaced)
    if program.layout is not None:
        forward = with_wrapped_slots(forward, program.layout)
    return CompiledGraphs(partitioned=partitioned, forward=forward, backward=backward, saving=saving)


def wrap(graphs: CompiledGraphs, request: ProgramRequest) -> CompiledProgram:
    """Wrap compiled graphs into a function of the program's arguments: prologue, autograd, epilogue, and eager fallbacks."""
    partitioned, analysis = graphs.partitioned, graphs.partitioned.analysis
    program = partitioned.program
    training = None
    if graphs.backward is not None:
        layout = program.layout
        training = CompiledTraining(
            graphs.forward,
            graphs.backward,
            analysis,
            dependences=partitioned.dependences,
            histories=partitioned.histories,
            wrapper_tangents=None if layout is None else WrapperTangents(analysis, layout, program.example_tangents),
            saving=graphs.saving,
        )
    compiled = runtime_wrapper(
        analysis,
        program.plan,
        inference=graphs.forward if training is None else None,
        training=training,
        aot_id=request.config.aot_id,
        captured=program.captured,
    )
    examples = request.args if request.plain is None else request.plain
    conditions = eager_conditions(examples, plan=program.plan, analysis=program.analysis, captured=program.captured)
    return CompiledProgram(call=eager_where(conditions, request.function, compiled), program=program)


def _examples(graph_module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta.get("val") for node in graph_module.graph.nodes if node.op == "placeholder"]


class _LazyCompile:
    """The backward graph, compiled when a gradient is first computed. Safe to call from several threads.

    kept: positions of its outputs that the compiled call returns; None for all. num_tokens: how many effect tokens are its
    last inputs.
    is_late: the forward may have run already. If compiling then needs a new guard, the graph runs uncompiled.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        config: AOTConfig,
        kept: Sequence[int] | None = None,
        *,
        num_tokens: int = 0,
        is_late: bool = False,
    ) -> None:
        self._is_late = is_late
        self._num_tokens = num_tokens
        self._graph_module = graph_module
        self._kept = kept
        self._config = config
        self._compiled: BoxedCall | None = None
        self._lock = threading.Lock()
        if any(isinstance(value, torch.SymInt) for value in _examples(graph_module)):
            self()  # guards that the compiler adds must be known before the forward runs

    def __call__(self) -> BoxedCall:
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._compile()
        return self._compiled

    def _compile(self) -> BoxedCall:
        call, kept, num_tokens = self._compile_all(), self._kept, self._num_tokens
        if kept is None:
            return call

        def call_and_select(inputs: list[Any]) -> list[Any]:
            found = call([*inputs, *new_tokens(num_tokens)] if num_tokens else inputs)
            return [found[position] for position in kept]

        return call_and_select

    def _compile_all(self) -> BoxedCall:
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


def _return_one_gradient_an_input(
    graph_module: torch.fx.GraphModule, gradients: Sequence[int | None]
) -> Sequence[int] | None:
    """Let a backward graph return a gradient or None for every input of the forward, in place.

    Before, it returns those that are not None, then other values. Returns their positions now; None if nothing changed.
    """
    output = graph_module.graph.output_node()
    returned: Any = output.args[0]
    count = sum(1 for gradient in gradients if gradient is not None)
    if count == len(gradients):
        return None
    output.args = ((*(None if g is None else returned[g] for g in gradients), *returned[count:]),)
    graph_module.recompile()
    places = {gradient: position for position, gradient in enumerate(gradients) if gradient is not None}
    others = range(len(gradients), len(gradients) + len(returned) - count)
    return [*(places[gradient] for gradient in range(count)), *others]


class BackwardGraphs:
    """The compiled backward graphs of a program: one for each set of tangents that are missing (None)."""

    def __init__(self, partitioned: PartitionedProgram, config: AOTConfig) -> None:
        program, graph_module = partitioned.program, partitioned.backward
        self._analysis = partitioned.analysis
        self._graph_module = graph_module if partitioned.is_dense else None
        self._config = config
        self._whole: Callable[[], BoxedCall] = _no_backward
        self._returned: Sequence[Any] = ()
        self._kept: Sequence[int] | None = None
        if graph_module is not None:
            self._returned = tuple(graph_module.graph.output_node().args[0])  # type: ignore[arg-type]
            if program.layout is None:
                self._kept = _return_one_gradient_an_input(graph_module, self._analysis.gradients)
            num_tokens = partitioned.backward_tokens
            if num_tokens:
                self._kept = [*(self._kept or range(len(self._returned)))][:-num_tokens]
            self._whole = _LazyCompile(graph_module, config, self._kept, num_tokens=num_tokens)
            if program.random.backward:
                self._whole = with_backward_states(self._whole, program.random)
        if program.layout is not None:
            self._whole = with_wrapped_gradients(self._whole, program.layout)
        self._parts: dict[frozenset[int], Callable[[], BoxedCall]] = {}
        self._lock = threading.Lock()

    def saving(self, partitioned: PartitionedProgram) -> SavedValuesPlan | None:
        """The plan of how long each saved value is kept. None if autograd's own saved tensors suffice."""
        graph_module, analysis = self._graph_module, self._analysis
        if graph_module is None:
            return None
        if analysis.freed_together == (frozenset({0}),):  # there is one result, and its backward frees all saved values
            return None
        divisible = is_divisible(graph_module)
        return plan_saved_values(
            partitioned.forward,
            graph_module,
            partitioned.forward_tokens + partitioned.num_outputs,
            analysis,
            is_divisible=divisible,
        )

    def __call__(self, missing: frozenset[int]) -> BoxedCall:
        if not missing:
            return self._whole()
        refuse_missing_tangents(self._analysis.backward_writes)
        with self._lock:
            if missing not in self._parts:
                part = None
                if self._graph_module is not None and self._gives_unread(self._graph_module.graph, missing):
                    part = without_tangents(self._graph_module, missing)
                if part is None:
                    refuse_zeros(self._analysis.adding, missing)
                self._parts[missing] = (
                    self._whole if part is None else _LazyCompile(part, self._config, self._kept, is_late=True)
                )
        return self._parts[missing]()

    def _gives_unread(self, graph: torch.fx.Graph, missing: frozenset[int]) -> bool:
        """Whether a part of the graph returns the constants that autograd returns for tangents it does not read."""
        unread = [(gradient, found - missing) for gradient, found in enumerate(self._analysis.given_unread)]
        if not any(found for _, found in unread):
            return True
        returned = self._returned
        tangents, constants = tangents_behind(graph), constants_behind(graph)
        return all(
            not found or not tangents.get(returned[gradient]) or found <= constants[returned[gradient]]
            for gradient, found in unread
        )


def _no_backward() -> BoxedCall:
    raise AssertionError("a backward that autograd refused to trace is not compiled")


# The name of the graph under compilation, which compilers read.


@dataclass(frozen=True, slots=True)
class _Compilation:
    names: tuple[str, ...] = ()
    model_name: str = "model"
    nth_graph: int = 0


_CURRENT: contextvars.ContextVar[_Compilation | None] = contextvars.ContextVar("refimpl_aot_compilation", default=None)


@contextlib.contextmanager
def graph_being_compiled(aot_id: int, kind: str) -> Iterator[None]:
    """Name the graph that is compiled in the block. `kind`: "forward", "backward", "joint" or "inference"."""
    token = _CURRENT.set(_Compilation(names=(f"{aot_id}_{kind}",), nth_graph=aot_id))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """Names of the graphs under compilation, the model's name, and a running number."""
    current = _CURRENT.get() or _Compilation()
    return list(current.names), current.model_name, current.nth_graph
