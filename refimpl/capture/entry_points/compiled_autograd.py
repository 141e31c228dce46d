"""Compiled autograd: within `enable`, `.backward()` in this thread is traced into a graph, compiled and run.

Counterpart: torch/_dynamo/compiled_autograd.py, torch/csrc/dynamo/python_compiled_autograd.cpp; torch/_dynamo/utils.py
maybe_enable_compiled_autograd
Differs: make_fx traces autograd's own engine from outside, on tensors without data; nothing is hooked into C++. Every call is
traced, but equal graphs are compiled once. The engine runs without a graph where a trace would be wrong (`_why_not`,
`_ProgramRuns`): hooks and functions written in Python, devices other than CPU, `create_graph`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import Node

from refimpl._torch import FakeTensorMode, active_dispatch_modes, engine_call, is_inside_backward
from refimpl.capture.public.counters import counters
from refimpl.capture.public.metrics import BwdCompilationMetrics, next_compile_id, record_compilation_metrics
from refimpl.capture.public.timing import backward_of, dynamo_timed
from refimpl.trace.make_fx import make_fx

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
_MOST_KEPT = 64  # compiled graphs per compiler
_TORCH = os.path.dirname(torch.__file__)
_REFIMPL = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
# Files of Python functions that run for an operator and not for the program: the dispatcher, fake kernels, the trace itself, the
# destructors of tensors.
_OF_OPERATORS = (
    *(os.path.join(_TORCH, part) for part in (
        "_ops.py", "utils/_python_dispatch.py", "utils/weak.py", "_subclasses", "_dispatch", "_refs", "_decomp", "_prims",
        "_prims_common", "_meta_registrations.py", "_library", "library.py",
    )),
    *(os.path.join(_REFIMPL, part) for part in ("trace", "symbolic", "functionalize")),
    weakref.__file__,
)  # fmt: skip


class _ProgramRuns(Exception):
    """The engine is about to call a Python function of the program: a hook, or the backward of an autograd Function."""


@dataclass(eq=False)
class CompiledBackward:
    """The compiled backward graphs, by their code and inputs."""

    compiler: Compiler
    _known: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def compiled(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Compiles the graph. An error of the compiler is recorded and raised."""
        key = module.code, tuple((*x.shape, "of", *x.stride(), x.dtype, x.device) for x in inputs)
        known = self._known.get(key)
        if known is None:
            while len(self._known) >= _MOST_KEPT:
                del self._known[next(iter(self._known))]
            known = self._known[key] = self._made(module, inputs)
        return known

    def _made(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        compile_id = next_compile_id()
        raised: BaseException | None = None
        try:
            with backward_of(str(compile_id)):
                return _compile_backward(self.compiler, module, inputs)
        except BaseException as error:
            raised = error
            raise
        finally:
            counters["compiled_autograd"]["compiles"] += 1
            record_compilation_metrics(
                BwdCompilationMetrics(
                    compile_id=compile_id, fail_type=None if raised is None else type(raised).__name__,
                    fail_reason=None if raised is None else str(raised),
                )
            )  # fmt: skip


@dynamo_timed(phase_name="backend_compile", fwd_only=False)
def _compile_backward(compiler: Compiler, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return compiler(module, list(inputs))


class _Enabled(threading.local):
    backward: CompiledBackward | None = None


_ENABLED = _Enabled()
_LOCK = threading.Lock()
_replaced: list[Any] = []  # torch's own function, once for each `enable` that is active


@contextlib.contextmanager
def enable(backward: CompiledBackward) -> Iterator[None]:
    """Within this block, `torch.autograd.backward` (and so `Tensor.backward`) uses the compiler, in this thread."""
    with _LOCK:
        _replaced.append(torch.autograd.backward)
        torch.autograd.backward = _backward
    before, _ENABLED.backward = _ENABLED.backward, backward
    try:
        yield
    finally:
        _ENABLED.backward = before
        with _LOCK:
            original = _replaced.pop()
            if not _replaced:
                torch.autograd.backward = original


def _backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    grad_variables: Any = None, inputs: Any = None,
) -> None:  # fmt: skip
    backward, original = _ENABLED.backward, _replaced[0]
    roots = _as_tuple(tensors)
    given = (None,) * len(roots) if grad_tensors is None else _as_tuple(grad_tensors)
    reason = "not enabled in this thread" if backward is None else _why_not(roots, given, create_graph, grad_variables)
    if backward is not None and reason is None:
        reason = _run_compiled(backward, roots, given, inputs, retains=bool(retain_graph))
        if reason is None:
            return
    if backward is not None:
        counters["compiled_autograd"][f"left to the engine: {reason}"] += 1
    original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)


_backward.__dict__["_torchdynamo_disable"] = True  # capture breaks the graph at this function


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _why_not(roots: Sequence[Any], given: Sequence[Any], create_graph: bool, grad_variables: Any) -> str | None:
    """A reason why a trace of this backward would be wrong; None where there is none."""
    if create_graph or grad_variables is not None:
        return "create_graph or grad_variables"
    if is_inside_backward() or active_dispatch_modes() or sys.getprofile() is not None:
        return "inside of a backward pass, under a dispatch mode, or under a profiler"
    if len(roots) != len(given):
        return "arguments that do not fit"
    for root, gradient in zip(roots, given, strict=True):
        if type(root) is not torch.Tensor or root.grad_fn is None or root.device.type != "cpu":
            return "a root that is no plain result on the CPU"
        if gradient is None and root.numel() != 1:
            return "a root that needs a gradient"
        if gradient is not None and (type(gradient) is not torch.Tensor or gradient.requires_grad):
            return "a gradient that is no plain tensor"
    return None


def _run_compiled(
    backward: CompiledBackward, roots: Sequence[torch.Tensor], given: Sequence[Any], inputs: Any, *, retains: bool
) -> str | None:
    """Traces, compiles and runs a backward. Returns the reason where that is not possible; then nothing has happened."""
    leaves = (
        _leaves_of(roots) if inputs is None else [*(inputs.values() if isinstance(inputs, dict) else _as_tuple(inputs))]
    )
    if not all(type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.is_leaf for leaf in leaves):
        return "gradients of tensors that are no plain leaves"
    if any(leaf._backward_hooks for leaf in leaves):
        return "a hook"
    gradients = [
        torch.ones_like(root, memory_format=torch.preserve_format) if gradient is None else gradient
        for root, gradient in zip(roots, given, strict=True)
    ]

    def gradients_of(*of_roots: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.no_grad():
            return torch.autograd.grad(list(roots), leaves, list(of_roots), retain_graph=True, allow_unused=True)

    try:
        with _refusing_code_of_the_program():
            module = make_fx(gradients_of, tracing_mode="fake", _allow_non_fake_inputs=True)(*gradients)
    except _ProgramRuns:
        return "a hook or a function of Python"
    except Exception as error:  # the engine runs next, and raises again where eager would raise
        return f"the trace raises {type(error).__name__}"
    saved = _lifted(module)
    call = backward.compiled(module, [*gradients, *saved])
    if not retains:
        _free(roots, leaves, gradients)
    with torch.no_grad():
        results = call(*gradients, *saved)
    for leaf, result in zip(leaves, results, strict=True):
        if result is not None:
            _replaced[0]([leaf], [result])  # accumulates the gradient as autograd does, with the hooks that follow
    return None


def _leaves_of(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All leaves that the engine would reach from the roots, in the order of the search."""
    found: list[torch.Tensor] = []
    seen = set[Node]()
    waiting: list[Any] = [root.grad_fn for root in reversed(roots)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        waiting += [following for following, _ in reversed(node.next_functions)]
    return found


def _lifted(module: fx.GraphModule) -> list[torch.Tensor]:
    """Turns the saved tensors that the trace found into inputs of the graph, in graph order, and returns these tensors."""
    saved: list[torch.Tensor] = []
    inputs: dict[str, fx.Node] = {}
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in inputs:
            tensor = getattr(module, name)
            assert isinstance(tensor, torch.Tensor), f"{name} is {tensor!r}\n  expected: a tensor that autograd saved"
            with module.graph.inserting_after(last):
                last = inputs[name] = module.graph.placeholder(f"saved_{len(saved)}")
            last.meta.update(node.meta)
            saved.append(tensor.detach())
        node.replace_all_uses_with(inputs[name])
        module.graph.erase_node(node)
    for name in inputs:
        delattr(module, name)
    module.recompile()
    return saved


def _free(roots: Sequence[torch.Tensor], leaves: list[Any], gradients: Sequence[torch.Tensor]) -> None:
    """Makes the engine free its saved tensors, so that a second backward raises as in eager. Computes nothing."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [mode.from_tensor(gradient) for gradient in gradients]
        torch.autograd.grad(list(roots), leaves, fakes, allow_unused=True)


@contextlib.contextmanager
def _refusing_code_of_the_program() -> Iterator[None]:
    """Raises _ProgramRuns before the engine runs a Python function that does not belong to an operator."""

    engines: list[FrameType] = []  # running engines, outermost first

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and engines and frame.f_back is engines[-1]:
            if not frame.f_code.co_filename.startswith(_OF_OPERATORS):
                raise _ProgramRuns(frame.f_code.co_filename, frame.f_code.co_name)
        elif event == "c_call" and frame.f_code is engine_call.__code__ and argument.__name__ == "run_backward":
            engines.append(frame)
        elif engines and frame is engines[-1] and event in ("c_return", "c_exception"):
            engines.pop()

    collects = gc.isenabled()
    gc.disable()  # the collector would run code of the program's, and its errors would be lost
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


@contextlib.contextmanager
def maybe_enable_compiled_autograd(
    should_enable: bool, fullgraph: bool = True, dynamic: bool = True
) -> Iterator[CompiledBackward | None]:
    """Within this block, `.backward()` is traced and its graph run without a compiler; no effect where `should_enable` is
    false.

    `fullgraph` and `dynamic` are accepted and ignored: a backward graph is always one graph, for the sizes it is traced with.
    """
    if not should_enable:
        yield None
        return
    backward = CompiledBackward(lambda module, inputs: module.forward)
    with enable(backward):
        yield backward
