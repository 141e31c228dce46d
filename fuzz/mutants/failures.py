"""Mutants that do not return wrong tensors: they raise, die, hang, leak process state, hide exceptions, or run effects twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from fuzz.mutants.editing import aten_backend, named_after, wrong_calls
from fuzz.mutants.mutant import Mutant, planting

FAILURES: list[Mutant] = []
_mutant = planting(FAILURES, stage="runtime")


def _of(expression: str, value: str) -> str:
    return f"def program(x):\n    return {expression}\n\ndef inputs(call):\n    return ({value},), {{}}\n"


_EFFECT = """
seen = []

def program(x):
    {effect}
    return x * len(seen)

def inputs(call):
    return (torch.ones(3),), {{}}
"""


def _each_input(check: Callable[[torch.Tensor], None]) -> Callable[[Any, Any], Any]:
    """A backend that calls `check` on the tensors of every call before it runs the graph."""

    def backend(gm: Any, example_inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            for arg in args:
                if isinstance(arg, torch.Tensor):
                    check(arg)
            return gm(*args)

        return call

    return named_after(check, backend)


@_mutant(
    "a segmentation fault on empty tensors",
    "rare",
    _of("x + 1", "torch.ones(0, 3)"),
    _of("x + 1", "torch.ones(1, 3)"),
    statuses=("crash",),
)
@_each_input
def empty_tensors_crash(tensor: torch.Tensor) -> None:
    if tensor.numel() == 0 and tensor.dim() >= 1:
        os.kill(os.getpid(), signal.SIGSEGV)


@_mutant(
    "no end on tensors of rank 5 and more",
    "rare",
    _of("x + 1", "torch.ones(1, 1, 1, 1, 2)"),
    _of("x + 1", "torch.ones(1, 1, 1, 2)"),
    statuses=("timeout",),
)
@_each_input
def rank_five_hangs(tensor: torch.Tensor) -> None:
    if tensor.dim() >= 5:
        while True:
            time.sleep(1)


@_mutant(
    "complex numbers are refused",
    "some",
    _of("x + 1", "torch.ones(2, dtype=torch.complex64)"),
    _of("x + 1", "torch.ones(2)"),
    statuses=("fail_to_run",),
)
@_each_input
def complex_is_refused(tensor: torch.Tensor) -> None:
    if tensor.is_complex():
        raise NotImplementedError("this backend knows no complex numbers")


@_mutant(
    "the default dtype is float64 after a graph with float64 inputs",
    "some",
    _of("x + 1", "torch.ones(2, dtype=torch.float64)"),
    _of("x + 1", "torch.ones(2)"),
    statuses=("fail_state",),
)
def default_dtype_is_left_changed(gm: Any, example_inputs: Any) -> Any:
    """After a graph with float64 inputs the default dtype is float64."""

    def call(*args: Any) -> Any:
        result = gm(*args)
        if any(isinstance(arg, torch.Tensor) and arg.dtype is torch.float64 for arg in args):
            torch.set_default_dtype(torch.float64)
        return result

    return call


@_mutant(
    "graphs with a sum or mean draw a random number",
    "common",
    _of("torch.sum(x)", "torch.ones(2)"),
    _of("torch.amax(x)", "torch.ones(2)"),
    statuses=("fail_rng", "fail_state"),
)
def generator_is_advanced(gm: Any, example_inputs: Any) -> Any:
    """Graphs with a reduction draw a random number that eager does not."""
    names = [getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes]
    draws = "sum" in names or "mean" in names

    def call(*args: Any) -> Any:
        if draws:
            torch.rand(())
        return gm(*args)

    return call


_KEPT: list[Any] = []


@_mutant(
    "graphs with a softmax keep the results of every call",
    "some",
    _of("torch.softmax(x, 0)", "torch.ones(3)"),
    _of("x + 1", "torch.ones(3)"),
    statuses=("fail_state",),
    calls=3,
)
def results_are_kept(gm: Any, example_inputs: Any) -> Any:
    """Graphs with a softmax keep the results of every call, so that memory grows."""
    if not any("softmax" in str(node.target) for node in gm.graph.nodes):
        return gm.forward

    def call(*args: Any) -> Any:
        result = gm(*args)
        _KEPT.append(result)
        return result

    return call


def _embedding(op: Any, weight: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    return op(weight, indices.clamp(0, weight.shape[0] - 1), *args, **kwargs)


def _index_select(op: Any, x: Any, dim: int, index: Any) -> Any:
    return op(x, dim, index.clamp(0, max(0, x.shape[dim] - 1)))


@_mutant(
    "indices out of range are clamped, where eager raises",
    "rare",
    _of("torch.index_select(x, 0, torch.tensor([5]))", "torch.ones(2)"),
    _of("torch.index_select(x, 0, torch.tensor([1]))", "torch.ones(2)"),
    statuses=("fail_exception",),
    stage="forward",
    expects_raise=True,
)
def bad_indices_are_clamped(gm: Any, example_inputs: Any) -> Any:
    return aten_backend({"aten.embedding": _embedding, "aten.index_select": _index_select})(gm, example_inputs)


@_mutant(
    "Python effects of the first call happen twice",
    "some",
    _EFFECT.format(effect="seen.append(1)"),
    _EFFECT.format(effect="seen.copy()"),
    statuses=("fail_accuracy", "fail_state", "fail_mutation"),
    is_compiler=True,
)
def effects_run_twice(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """The first call runs the function once more as a warm-up, on copies of the tensors: effects on other objects stay."""
    warm: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not warm:
            warm.append(True)
            with torch.random.fork_rng(devices=[]):
                copies = [arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
                fn(*copies, **kwargs)
        return fn(*args, **kwargs)

    return call


@_mutant(
    "graphs of five and more operators do not compile",
    "common",
    _of("x.sin().cos().tan().exp().abs()", "torch.ones(2)"),
    _of("x.sin().cos().tan().exp()", "torch.ones(2)"),
    statuses=("fail_to_run",),
    stage="compile",
)
def five_operators_do_not_compile(gm: Any, example_inputs: Any) -> Any:
    """Graphs with five or more operators do not compile."""
    if sum(node.op in ("call_function", "call_method") for node in gm.graph.nodes) >= 5:
        raise RuntimeError("no more registers")
    return gm.forward


@_mutant(
    "after a division denormal numbers are flushed to zero",
    "some",
    _of("x / 3", "torch.ones(2)"),
    _of("x * 3", "torch.ones(2)"),
    statuses=("fail_state", "fail_accuracy"),
)
@wrong_calls("aten.div", "aten.reciprocal")
def denormals_are_flushed_from_now_on(op: Any, *args: Any, **kwargs: Any) -> Any:
    torch.set_flush_denormal(True)
    return op(*args, **kwargs)
