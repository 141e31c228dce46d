"""Makes torch.cond, while_loop, scan and map call their operator directly while a trace runs, instead of torch.compile.

A call of the operator itself, as in a graph that was captured before, gets its gradients by the same rules: torch's rules trace
the backward by torch's own tracer. A method of a script object calls `call_torchbind`, and a launch of a Triton kernel calls the
operator of such launches. A nested compile region is traced as a part of the program that calls it.

Counterpart: torch/_higher_order_ops/utils.py _hop_compile_and_call
Differs: called from eager code, these functions compile themselves to lift closed-over values. refimpl's traces lift these
themselves (refimpl.trace.higher_order.calls).

While any trace runs in the process, `_hop_compile_and_call`, the call of script methods and `run` of Triton's classes of kernels
are replaced. In a thread that traces the replacement calls the operator; in other threads it does what the original does. Before
torch 2.13, `torch.compile` is replaced instead, and only calls from the modules of these operators are changed.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import (
    call_torchbind,
    has_fake_class,
    hop_utils,
    pytree,
    transform_kinds,
    with_autograd_kernel,
    without_wrapped_kernels,
)
from refimpl.errors import MismatchedBranches
from refimpl.trace.higher_order import flat_calls, gradients
from refimpl.trace.higher_order.calls import WANTS_GRADIENTS, Subgraph, TracedFunction
from refimpl.trace.higher_order.compile_regions import KeptRegion, are_kept
from refimpl.trace.higher_order.draws import are_numbers_kept
from refimpl.trace.higher_order.functional_checks import check_functional
from refimpl.trace.triton_kernels.kernel_objects import AROUND, AUTOTUNER, FUNCTIONS, is_kernel
from refimpl.trace.triton_kernels.launches import launch
from refimpl.trace.triton_kernels.operators import RUNS_KERNEL

_SHARED = "_hop_compile_and_call"
_OPERATORS = hop_utils.__name__.rpartition(".")[0] + "."  # modules of the operators that compile themselves
# Set in the module of flex_attention, this lets it call its operator as it is. It holds for all threads.
_FLEX, _CALLS_OPERATOR = "torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_COND = "_cond_op_wrapper"  # the function that torch.cond compiles
_REGION = "_invoke_subgraph_placeholder_wrapper"  # what a call of a nested compile region compiles: it would call itself again
_SCRIPT_METHOD: Any = torch.ScriptMethod
TraceFunction = Callable[..., Subgraph]
_trace_function: contextvars.ContextVar[TraceFunction | None] = contextvars.ContextVar(
    "refimpl_calls_operators_directly", default=None
)
_records_launches: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_records_launches", default=False)


def _is_tracing() -> bool:
    return _trace_function.get() is not None


class _InstallationState:
    """Replaces functions of torch and Triton while at least one trace runs in any thread. Mutable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        is_shared = hasattr(hop_utils, _SHARED)
        self._owner: Any = hop_utils if is_shared else torch
        self._name = _SHARED if is_shared else "compile"
        self._replacement = self._call if is_shared else self._compile
        self._original: Callable[..., Any] | None = None
        self._original_method: Any = None
        self._flex: Any = None
        self._flex_flag: bool | None = None
        self._launchers: list[tuple[type, Any]] = []  # classes of kernels, with their own `run`
        self._rules = contextlib.ExitStack()  # gradients of operators

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._original = getattr(self._owner, self._name)
                setattr(self._owner, self._name, self._replacement)
                self._flex = sys.modules.get(_FLEX)
                self._flex_flag = getattr(self._flex, _CALLS_OPERATOR, None)
                if self._flex_flag is not None:
                    setattr(self._flex, _CALLS_OPERATOR, True)
                self._original_method = _SCRIPT_METHOD.__call__
                _SCRIPT_METHOD.__call__ = _recorded_method(self._original_method)
                for operator in _DIFFERENTIATED:
                    self._rules.enter_context(
                        with_autograd_kernel(operator, functools.partial(_differentiated, operator))
                    )
            replaced = [class_ for class_, _ in self._launchers]
            for class_ in _launch_classes():  # the program may have imported Triton since another trace began
                if class_ not in replaced:
                    original = class_.__dict__["run"]
                    self._launchers.append((class_, original))
                    class_.run = _recorded_launch(original)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                setattr(self._owner, self._name, self._original)
                if self._flex_flag is not None:
                    setattr(self._flex, _CALLS_OPERATOR, self._flex_flag)
                _SCRIPT_METHOD.__call__ = self._original_method
                self._rules.close()
                for class_, original in self._launchers:
                    class_.run = original
                self._launchers.clear()

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        trace_function = _trace_function.get()
        if trace_function is not None:
            return _called(fn, trace_function, args, kwargs or {})
        assert self._original is not None
        return self._original(fn, args, kwargs)

    def _compile(self, model: Any = None, **settings: Any) -> Any:
        trace_function = _trace_function.get()
        if trace_function is not None and str(getattr(model, "__module__", "")).startswith(_OPERATORS):
            return lambda *args, **kwargs: _called(model, trace_function, args, kwargs)
        assert self._original is not None
        return self._original(model, **settings)


def _called(fn: Callable[..., Any], trace_function: TraceFunction, args: Any, kwargs: Any) -> Any:
    args, kwargs = gradients.as_replaced((args, kwargs))
    if fn.__name__ == _REGION:
        function, given, named = args
        return KeptRegion(function, given, named).called() if are_kept() else function(*given, **named)
    if fn.__name__ == _COND:
        return _cond(fn, trace_function, *args, **kwargs)
    token = WANTS_GRADIENTS.set(torch.is_grad_enabled())
    try:
        match fn.__name__:
            case "run_flattened_map":
                return flat_calls.map_over(trace_function, fn, *args)
            case "run_flattened_scan":
                return flat_calls.scan(trace_function, *args)
            case "_while_loop_op_wrapper":
                return flat_calls.while_loop(trace_function, fn, *args)
            case _:
                return fn(*args, **kwargs)
    finally:
        WANTS_GRADIENTS.reset(token)


def _cond(
    fn: Callable[..., Any], trace_function: TraceFunction, pred: Any, true_fn: Any, false_fn: Any, operands: Any
) -> Any:
    if transform_kinds():
        return flat_calls.cond_within_vmap(pred, true_fn, false_fn, operands)
    leaves, spec = pytree.tree_flatten(tuple(operands))
    keys = [id(leaf) if isinstance(leaf, torch.Tensor) else -place for place, leaf in enumerate(leaves, 1)]
    unique = dict(zip(keys, leaves, strict=True))
    places = [[*unique].index(key) for key in keys]
    branches, operands = [true_fn, false_fn], tuple(unique.values())
    if len(unique) < len(leaves) or not all(child.is_leaf() for child in spec.children()):
        branches = [flat_calls.with_flat_operands(function, spec, places) for function in branches]
    # Torch's backward of `cond` expects a tuple, and gives no gradients to what is in containers within it.
    on_true, on_false = map(flat_calls.Flat, branches)
    subgraphs = [trace_function(way, tuple(operands), may_not_run=True, on_copies=True) for way in (on_true, on_false)]
    if torch.is_grad_enabled():
        for subgraph in subgraphs:
            check_functional("cond", subgraph)
    found = gradients.cond(fn, trace_function, subgraphs, pred, (on_true, on_false), operands)
    if on_true.spec != on_false.spec:
        raise MismatchedBranches("cond", on_true.described(), on_false.described())
    return on_true.restored(found)


_HIGHER_ORDER: Any = torch.ops.higher_order
_DIFFERENTIATED = (_HIGHER_ORDER.cond, _HIGHER_ORDER.map_impl, _HIGHER_ORDER.while_loop, _HIGHER_ORDER.scan)


def _differentiated(operator: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the operator's rule for gradients is while a trace runs in some thread. original: torch's rule."""
    trace_function = _trace_function.get()
    if trace_function is None or transform_kinds() or not gradients.TRACES_BACKWARD.get():
        return original(*args, **kwargs)
    is_wanted = gradients.is_wanted(*pytree.tree_leaves((args, kwargs)))
    match operator.name():
        case "scan":  # with gradients it is called by differentiable_scan, or has torch's rule
            is_ours = are_numbers_kept()
        case "while_loop":
            is_ours = is_wanted
        case _:
            is_ours = is_wanted or are_numbers_kept()
    if not is_ours or any(isinstance(value, TracedFunction) for value in args):
        return original(*args, **kwargs)
    token = WANTS_GRADIENTS.set(True)
    try:
        match operator.name():
            case "cond":
                return _cond(operator, trace_function, *args, **kwargs)
            case "map_impl":
                return flat_calls.map_operator(trace_function, *args, **kwargs)
            case "scan":
                return flat_calls.scan_operator(trace_function, original, *args, **kwargs)
            case _:
                return flat_calls.while_loop_operator(trace_function, original, *args, **kwargs)
    finally:
        WANTS_GRADIENTS.reset(token)


_INSTALLATION = _InstallationState()


@contextlib.contextmanager
def operators_called_directly(trace_function: TraceFunction, *, has_backward: bool) -> Iterator[None]:
    """A block, for the thread of a trace, in which calls go to the operators. `trace_function` makes a subgraph of the trace.

    has_backward: whether the trace may compute gradients.
    """
    token, other = _trace_function.set(trace_function), gradients.TRACES_BACKWARD.set(has_backward)
    try:
        with launches_recorded():
            yield
    finally:
        gradients.TRACES_BACKWARD.reset(other)
        _trace_function.reset(token)


@contextlib.contextmanager
def launches_recorded() -> Iterator[None]:
    """A block, for the thread of a trace or capture, in which a launch of a Triton kernel calls its operator."""
    _INSTALLATION.enter()
    token = _records_launches.set(True)
    try:
        with without_wrapped_kernels():
            yield
    finally:
        _records_launches.reset(token)
        _INSTALLATION.leave()


def _recorded_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.ScriptMethod.__call__` is while a trace runs in some thread."""

    def call(method: Any, *args: Any, **kwargs: Any) -> Any:
        owner = method.raw_owner
        if _is_tracing() and type(owner) is torch.ScriptObject and has_fake_class(owner):
            return call_torchbind(owner, method.name, *args, **kwargs)
        return original(method, *args, **kwargs)

    return call


def _launch_classes() -> list[Any]:
    """The classes whose method `run` launches a kernel; none if Triton has not been imported."""
    names = [*FUNCTIONS.items(), *((AUTOTUNER, name) for name in sorted(AROUND))]
    found = [getattr(sys.modules.get(module), name, None) for module, name in names]
    return [class_ for class_ in found if class_ is not None]


def _recorded_launch(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `run` of a class of kernels is while a trace runs in some thread."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup or RUNS_KERNEL.get() or not _records_launches.get() or not is_kernel(kernel):
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        return launch(kernel, grid, args, kwargs)

    return run
