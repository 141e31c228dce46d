"""Mutants that do not return wrong tensors: they raise, die, hang, leak process state, hide exceptions, or run effects twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from fuzz.mutants.editing import aten_backend
from fuzz.mutants.mutant import Mutant


def _each_input(check: Callable[[torch.Tensor], None]) -> Callable[[Any, Any], Any]:
    """A backend that calls `check` on the tensors of every call before it runs the graph."""

    def backend(gm: Any, example_inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            for arg in args:
                if isinstance(arg, torch.Tensor):
                    check(arg)
            return gm(*args)

        return call

    return backend


def _die_of_nothing(tensor: torch.Tensor) -> None:
    if tensor.numel() == 0 and tensor.dim() >= 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def empty_tensors_crash(gm: Any, example_inputs: Any) -> Any:
    return _each_input(_die_of_nothing)(gm, example_inputs)


def _hang_on_rank_five(tensor: torch.Tensor) -> None:
    if tensor.dim() >= 5:
        while True:
            time.sleep(1)


def rank_five_hangs(gm: Any, example_inputs: Any) -> Any:
    return _each_input(_hang_on_rank_five)(gm, example_inputs)


def _refuse_complex(tensor: torch.Tensor) -> None:
    if tensor.is_complex():
        raise NotImplementedError("this backend knows no complex numbers")


def complex_is_refused(gm: Any, example_inputs: Any) -> Any:
    return _each_input(_refuse_complex)(gm, example_inputs)


def default_dtype_is_left_changed(gm: Any, example_inputs: Any) -> Any:
    """After a graph with float64 inputs the default dtype is float64."""

    def call(*args: Any) -> Any:
        result = gm(*args)
        if any(isinstance(arg, torch.Tensor) and arg.dtype is torch.float64 for arg in args):
            torch.set_default_dtype(torch.float64)
        return result

    return call


def generator_is_advanced(gm: Any, example_inputs: Any) -> Any:
    """Graphs with a reduction draw a random number that eager does not."""
    names = [getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes]
    draws = "sum" in names or "mean" in names

    def call(*args: Any) -> Any:
        if draws:
            torch.rand(())
        return gm(*args)

    return call


def _embedding(op: Any, weight: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    return op(weight, indices.clamp(0, weight.shape[0] - 1), *args, **kwargs)


def _index_select(op: Any, x: Any, dim: int, index: Any) -> Any:
    return op(x, dim, index.clamp(0, max(0, x.shape[dim] - 1)))


def bad_indices_are_clamped(gm: Any, example_inputs: Any) -> Any:
    return aten_backend({"aten.embedding": _embedding, "aten.index_select": _index_select})(gm, example_inputs)


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


def five_operators_do_not_compile(gm: Any, example_inputs: Any) -> Any:
    """Graphs with five or more operators do not compile."""
    if sum(node.op in ("call_function", "call_method") for node in gm.graph.nodes) >= 5:
        raise RuntimeError("no more registers")
    return gm.forward


def _flushed(op: Any, *args: Any, **kwargs: Any) -> Any:
    torch.set_flush_denormal(True)
    return op(*args, **kwargs)


def denormals_are_flushed_from_now_on(gm: Any, example_inputs: Any) -> Any:
    return aten_backend({"aten.div": _flushed, "aten.reciprocal": _flushed})(gm, example_inputs)


def _mutant(
    function: Any, bug: str, statuses: tuple[str, ...], rarity: str, trigger: str, control: str, **fields: Any
) -> Mutant:
    given: dict[str, Any] = {"stage": "runtime", **fields}
    return Mutant(
        function=function, bug=bug, statuses=statuses, rarity=rarity, trigger=trigger, control=control, **given
    )


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

FAILURES = (
    _mutant(
        empty_tensors_crash,
        "a segmentation fault on empty tensors",
        ("crash",),
        "rare",
        _of("x + 1", "torch.ones(0, 3)"),
        _of("x + 1", "torch.ones(1, 3)"),
    ),
    _mutant(
        rank_five_hangs,
        "no end on tensors of rank 5 and more",
        ("timeout",),
        "rare",
        _of("x + 1", "torch.ones(1, 1, 1, 1, 2)"),
        _of("x + 1", "torch.ones(1, 1, 1, 2)"),
    ),
    _mutant(
        complex_is_refused,
        "complex numbers are refused",
        ("fail_to_run",),
        "some",
        _of("x + 1", "torch.ones(2, dtype=torch.complex64)"),
        _of("x + 1", "torch.ones(2)"),
    ),
    _mutant(
        default_dtype_is_left_changed,
        "the default dtype is float64 after a graph with float64 inputs",
        ("fail_state",),
        "some",
        _of("x + 1", "torch.ones(2, dtype=torch.float64)"),
        _of("x + 1", "torch.ones(2)"),
    ),
    _mutant(
        generator_is_advanced,
        "graphs with a sum or mean draw a random number",
        ("fail_rng", "fail_state"),
        "common",
        _of("torch.sum(x)", "torch.ones(2)"),
        _of("torch.amax(x)", "torch.ones(2)"),
    ),
    _mutant(
        bad_indices_are_clamped,
        "indices out of range are clamped, where eager raises",
        ("fail_exception",),
        "rare",
        _of("torch.index_select(x, 0, torch.tensor([5]))", "torch.ones(2)"),
        _of("torch.index_select(x, 0, torch.tensor([1]))", "torch.ones(2)"),
        stage="forward",
        expects_raise=True,
    ),
    _mutant(
        effects_run_twice,
        "Python effects of the first call happen twice",
        ("fail_accuracy", "fail_state", "fail_mutation"),
        "some",
        _EFFECT.format(effect="seen.append(1)"),
        _EFFECT.format(effect="seen.copy()"),
        is_compiler=True,
    ),
    _mutant(
        five_operators_do_not_compile,
        "graphs of five and more operators do not compile",
        ("fail_to_run",),
        "common",
        _of("x.sin().cos().tan().exp().abs()", "torch.ones(2)"),
        _of("x.sin().cos().tan().exp()", "torch.ones(2)"),
        stage="compile",
    ),
    _mutant(
        denormals_are_flushed_from_now_on,
        "after a division denormal numbers are flushed to zero",
        ("fail_state", "fail_accuracy"),
        "some",
        _of("x / 3", "torch.ones(2)"),
        _of("x * 3", "torch.ones(2)"),
        stage="runtime",
    ),
)
