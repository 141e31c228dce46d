"""Runs one trace: makes the inputs fake, runs the function under the recording mode, and makes its result the graph's output.

Counterpart: torch/fx/experimental/proxy_tensor.py _MakefxTracer, dispatch_trace, wrap_key;
  make_fx(proxy_module_inputs=True) in torch/fx/experimental/proxy_tensor.py wrap_key
Differs: no fx tracer runs beside the dispatch mode; the graph is recorded from dispatcher calls alone. A symbolic size that no
op uses gets no node, so there is no dead code to remove afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import dis
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.fx.proxy import GraphAppendingTracer

from refimpl._torch import (
    SYMBOLIC_TYPES,
    FakeScriptObject,
    FakeTensorMode,
    fake_object,
    is_opaque_object,
    pytree,
    without_overrides,
)
from refimpl.errors import ForeignFakeInput, UntracedSideEffect
from refimpl.symbolic.fake_inputs import fake_input, fake_int, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.composite_kernels import composite_kernels
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.higher_order import Subgraph
from refimpl.trace.higher_order.calls import copy_of, in_plain_containers, numbers_of
from refimpl.trace.higher_order.direct_calls import operators_called_directly
from refimpl.trace.metadata import StackTraceState, TorchFunctionState, emits_stack_traces
from refimpl.trace.module_stack import ModuleStackState
from refimpl.trace.options import TraceOptions
from refimpl.trace.pre_dispatch import PreDispatchRecordingMode, calls_that_are_no_ops
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.symbols import Assertions
from refimpl.trace.tracker import fake_mode_of


class Trace:
    """Traces one function. A trace started inside of it finds its options and fake mode through `current_trace()`."""

    def __init__(self, options: TraceOptions, *, parent: Trace | None = None) -> None:
        self.options = options
        self.parent = parent
        self.fake_mode: FakeTensorMode | None = None if parent is None else parent.fake_mode
        self.builder = GraphBuilder()
        self.recording: RecordingMode | None = None
        self.result: Any = None  # what the function returned
        self._module_stack: ModuleStackState | None = None if parent is None else parent._module_stack
        self._stack_traces: StackTraceState | None = None

    def run(self, f: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.GraphModule:
        """Trace `f(*args)` into a GraphModule. All modes are left again if `f` raises, and the exception is not changed."""
        leaves, in_spec = pytree.tree_flatten(list(args))
        if self.fake_mode is None and self.options.is_fake:
            self.fake_mode = _fake_mode(leaves, self.options)
        self.builder.fake_mode = self.fake_mode
        kind = PreDispatchRecordingMode if self.options.pre_dispatch else RecordingMode
        recording = self.recording = kind(self.builder, self.options, self.fake_mode)
        recording.trace_function = self.trace_function
        if self.parent is not None and self.parent.recording is not None:
            recording.use_values_of(self.parent.recording)
            recording.on_captured = self.parent.recording.on_captured
        names = _argument_names(f, len(args))
        with paused_recordings(), self._unseen():
            inputs = self._inputs(leaves)
            given: list[Any] = []
            for name, value in zip(_placeholder_names(names, in_spec), inputs, strict=True):
                # A tensor passed twice is tracked as the later placeholder.
                node = self.builder.placeholder(name, value)
                recording.track(value, node)
                if self.options.proxy_module_inputs and isinstance(value, torch.nn.Module):
                    value = module_proxy(recording, node)
                given.append(value)
        with self._modes(recording), self._origins(f):
            with warned_of_globals(f):
                result = self.result = f(*pytree.tree_unflatten(given, in_spec))
        with paused_recordings(), self._unseen():
            self.builder.output(pytree.tree_map(recording.node_of, result), in_spec=in_spec, names=names)
        if self._stack_traces is not None:
            self._stack_traces.finish()
        graph_module = self.builder.finish(_name_of(f))
        if self.options.tracing_mode == "symbolic" and self.fake_mode is not None:
            graph_module.shape_env = self.fake_mode.shape_env
        return graph_module

    def subgraph(self, f: Callable[..., Any], *args: Any) -> torch.fx.GraphModule:
        """Trace a function that an operator takes (a branch of torch.cond), with this trace's fake mode and symbols.

        Tensors and numbers of this trace that the function closes over become placeholders after those of `args`.
        """
        return self.trace_function(f, args).graph_module

    def trace_function(
        self,
        f: Callable[..., Any],
        operands: tuple[Any, ...],
        *,
        may_not_run: bool = False,
        on_copies: bool = False,
        rows: slice = slice(0),
    ) -> Subgraph:
        """Like `subgraph`, but also returns the function's result and the values that it closes over.

        may_not_run: what the function asserts of numbers that are read from data is not known to hold after it. on_copies: an
        operand that the function closes over as well counts as closed over. rows: operands whose first row the function gets.
        """
        child = type(self)(self.options, parent=self)
        if self.fake_mode is None or on_copies:
            # In real mode on copies, because a function that mutates its operands must do so only when the operator runs.
            with paused_recordings():
                given = [*map(copy_of if self.fake_mode is None else _alias_of, operands)]
                given[rows] = [x[0] for x in given[rows]]
                operands = tuple(given)
        shape_env: Any = None if self.fake_mode is None else self.fake_mode.shape_env
        records_origins = getattr(shape_env, "records_origins", None)
        if records_origins is not None:  # off while an operator's kernel runs (RecordingMode.__torch_dispatch__)
            shape_env.records_origins = True
        may_not_run = may_not_run and isinstance(shape_env, ShapeEnv)
        try:
            with numbers_of(None), shape_env.facts_of_region() if may_not_run else contextlib.nullcontext():
                graph_module = child.run(in_plain_containers(f), operands)
        finally:
            if records_origins is not None:
                shape_env.records_origins = records_origins
            if child.recording is not None:
                child.recording.restore_overwritten()
        assert child.recording is not None
        return Subgraph(graph_module=graph_module, result=child.result, lifted=child.recording.lifted)

    @contextlib.contextmanager
    def _modes(self, recording: RecordingMode) -> Iterator[None]:
        """A block in which all modes of the trace are active; they are entered outermost first."""
        options = self.options
        with contextlib.ExitStack() as stack:
            if self.fake_mode is not None:
                stack.enter_context(self.fake_mode)
            copies = (
                self.parent is not None and torch.is_grad_enabled()
            )  # as eager's branches and bodies with gradients
            if copies or options.tracing_mode == "symbolic" or options.pre_dispatch or options.uses_python_kernels:
                stack.enter_context(composite_kernels(copies=copies))
            stack.enter_context(_without_autocast_cache())
            stack.enter_context(_current(self))
            stack.enter_context(operators_called_directly(self.trace_function, has_backward=not options.pre_dispatch))
            if isinstance(recording, PreDispatchRecordingMode):
                stack.enter_context(calls_that_are_no_ops(recording))
            stack.enter_context(recording)
            shape_env = None if self.fake_mode is None else self.fake_mode.shape_env
            if options.records_assertions and isinstance(shape_env, ShapeEnv):
                assertions = Assertions(recording.symbols, shape_env, lambda: recording.is_recording)
                stack.enter_context(assertions.recorded())
            yield

    @contextlib.contextmanager
    def _origins(self, f: Callable[..., Any]) -> Iterator[None]:
        """Install the writers of `nn_module_stack`, `torch_fn` and `stack_trace`. A subgraph shares its parent's module stack."""
        options, writers = self.options, self.builder.annotators
        root = getattr(f, "_orig_mod", None)
        with contextlib.ExitStack() as stack:
            if self.parent is None and options.record_module_stack and isinstance(root, torch.nn.Module):
                self._module_stack = ModuleStackState(root)
                stack.enter_context(self._module_stack.watching())
            if self._module_stack is not None:
                writers.append(self._module_stack.write)
            if self._module_stack is not None and options.record_torch_functions:
                functions = TorchFunctionState()
                writers.append(functions.write)
                stack.enter_context(functions)
            if (self._module_stack is not None or options.record_stack_traces) and emits_stack_traces():
                self._stack_traces = StackTraceState(Trace.run.__code__, self._depth())
                writers.append(self._stack_traces.write)
            yield

    def _depth(self) -> int:
        return 1 if self.parent is None else self.parent._depth() + 1

    def _unseen(self) -> contextlib.AbstractContextManager[Any]:
        """Within, function modes of the program around this trace do not see what the trace itself does."""
        return contextlib.nullcontext() if self.parent is None else without_overrides()

    def _inputs(self, leaves: list[Any]) -> list[Any]:
        if self.fake_mode is None or self.parent is not None:
            return leaves
        return [self._input(leaf, f"input{index}") for index, leaf in enumerate(leaves)]

    def _input(self, leaf: Any, source: str) -> Any:
        fake_mode = self.fake_mode
        assert fake_mode is not None
        shape_env = fake_mode.shape_env
        is_symbolic = self.options.tracing_mode == "symbolic"
        if isinstance(leaf, torch.Tensor) and fake_mode_of(leaf) is not None:
            return leaf
        if isinstance(leaf, torch.Tensor):
            if is_symbolic and isinstance(shape_env, ShapeEnv):
                return fake_input(leaf, fake_mode, shape_env, source)
            return fake_mode.from_tensor(leaf, static_shapes=None if is_symbolic else True)
        if isinstance(leaf, FakeScriptObject):
            raise ForeignFakeInput(seen=f"{leaf}, the fake of a script object", do="pass the script object itself")
        if is_opaque_object(leaf):
            return fake_object(fake_mode, leaf)
        is_symbol = is_symbolic and not self.options.specializes_integers
        if type(leaf) is int and is_symbol and isinstance(shape_env, ShapeEnv):
            return fake_int(leaf, shape_env, source)
        return leaf


def _alias_of(operand: Any) -> Any:
    """Another tensor object with the same memory, which is tracked by itself."""
    return operand.detach().requires_grad_(operand.requires_grad) if isinstance(operand, torch.Tensor) else operand


_CURRENT: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("refimpl_current_trace", default=None)


def current_trace() -> Trace | None:
    """The innermost trace running in this thread, if any."""
    return _CURRENT.get()


@contextlib.contextmanager
def _current(trace: Trace) -> Iterator[None]:
    token = _CURRENT.set(trace)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _fake_mode(leaves: list[Any], options: TraceOptions) -> FakeTensorMode:
    """The FakeTensorMode of the fake inputs, since fake modes do not mix; a new one if no input is fake."""
    modes = list(dict.fromkeys(mode for mode in map(fake_mode_of, leaves) if mode is not None))
    if len(modes) > 1:
        raise ForeignFakeInput(
            seen=f"fake inputs of {len(modes)} different FakeTensorModes", do="create all fake inputs in one mode"
        )
    is_symbolic = options.tracing_mode == "symbolic"
    if modes:
        if is_symbolic and modes[0].shape_env is None:
            raise ForeignFakeInput(
                seen="tracing_mode='symbolic' on fake inputs whose mode has no shape_env; shape_env should be set",
                do="give FakeTensorMode a shape_env, or trace with tracing_mode='fake'",
            )
        return modes[0]
    made: Any = symbolic_fake_mode(
        allow_fallback_kernels=not is_symbolic,
        allow_non_fake_inputs=options.allow_non_fake_inputs,
        static_shapes=not is_symbolic,
    )
    made._allow_unsafe_data_ptr_access = False  # a program that reads an address gets an error, and not 0
    return made


def _argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """The function's parameter names, or `arg0`, `arg1`, ... if its signature does not name every argument."""
    try:
        parameters = list(inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return named[:count] if len(named) >= count else [f"arg{i}" for i in range(count)]


def _placeholder_names(names: list[str], in_spec: pytree.TreeSpec) -> Iterator[str]:
    """`x_1` for a tensor x; `xs_1`, `xs_2` for the leaves of a list xs."""
    for name, spec in zip(names, in_spec.children(), strict=True):
        for leaf in range(spec.num_leaves):
            yield f"{name}_{leaf + 1}"


def _name_of(f: Callable[..., Any]) -> str:
    return type(f).__name__ if isinstance(f, torch.nn.Module) else getattr(f, "__name__", type(f).__name__)


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Switch autocast's weight cache off: a cached cast is a tensor that no op of this trace made."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


# With proxy_module_inputs=True, a module among the inputs is an fx proxy: its attributes and calls become nodes.
# Differs: a traced tensor that is passed to such a call is recorded as its node; upstream makes it a constant. A call through the
# proxy is not run, and its result is a proxy too: later torch functions on it are recorded as called, without aten ops or `val`.


def module_proxy(recording: RecordingMode, node: torch.fx.Node) -> torch.fx.Proxy:
    """A proxy for the module that is passed to the placeholder `node`."""
    return torch.fx.Proxy(node, _ModuleTracer(recording))


class _ModuleTracer(GraphAppendingTracer):
    """Adds nodes recorded by proxies to the graph of the trace."""

    def __init__(self, recording: RecordingMode) -> None:
        super().__init__(recording.builder.graph)
        self._recording = recording

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, (torch.Tensor, *SYMBOLIC_TYPES)):
            return self._recording.node_of(a)
        return super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = super().create_node(*args, **kwargs)
        for annotate in self._recording.builder.annotators:
            annotate(node)
        return node


# Globals that the traced function assigns: the graph will not assign them again. The function runs once, while it is traced, so a
# global counter does not count the graph's runs, and a traced tensor in a global has no data after the trace. Functions that the
# traced function calls are not checked.

_ABSENT = object()


@contextlib.contextmanager
def warned_of_globals(f: Callable[..., Any]) -> Iterator[None]:
    """A block in which `f` runs. Warns afterwards (UntracedSideEffect) about every global that `f` itself has changed."""
    function = _function_of(f)
    stores = {} if function is None else _stored_globals(function)
    if function is None or not stores:
        yield
        return
    before = {name: function.__globals__.get(name, _ABSENT) for name in stores}
    yield
    for name, line in stores.items():
        after = function.__globals__.get(name, _ABSENT)
        if after is not before[name]:
            place = f"{function.__code__.co_filename}:{line}"
            warnings.warn(UntracedSideEffect(name, place, is_tensor=isinstance(after, torch.Tensor)), stacklevel=5)


def _function_of(f: Callable[..., Any]) -> FunctionType | None:
    target: Any = f.forward if isinstance(f, torch.nn.Module) else inspect.unwrap(f)
    target = getattr(target, "__func__", target)
    return target if isinstance(target, FunctionType) else None


def _stored_globals(function: FunctionType) -> dict[str, int]:
    """Names of globals that the function assigns or deletes, each with the line of the first time."""
    if not function.__code__.co_names:
        return {}
    stored: dict[str, int] = {}
    line = function.__code__.co_firstlineno
    for instruction in dis.get_instructions(function.__code__):
        line = _line_of(instruction) or line
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.setdefault(instruction.argval, line)
    return stored


def _line_of(instruction: dis.Instruction) -> int | None:
    """The line of an instruction: `starts_line` up to Python 3.12, `line_number` from 3.13 on."""
    line = getattr(instruction, "line_number", None)
    return line if line is not None else (instruction.starts_line if type(instruction.starts_line) is int else None)
