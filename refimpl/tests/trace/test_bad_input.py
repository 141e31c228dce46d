"""What a trace cannot do is said with what was seen, what was expected, what to do, and the user's line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import refimpl
from refimpl.errors import BadDecomposition, NotTracked, UntracedSideEffect

aten = torch.ops.aten
HERE = Path(__file__).name
COUNTER = 0
KEPT: Any = None


def _counts(x: torch.Tensor) -> torch.Tensor:
    global COUNTER
    COUNTER += 1
    return x + COUNTER


def _keeps(x: torch.Tensor) -> torch.Tensor:
    global KEPT
    KEPT = x.sin()
    return x + 1


@pytest.mark.parametrize(("function", "what"), [(_counts, "'COUNTER'"), (_keeps, "a tensor of the trace")])
def test_a_global_that_is_assigned_is_warned_of(function: Any, what: str) -> None:
    with pytest.warns(UntracedSideEffect, match=what) as caught:
        refimpl.make_fx(function)(torch.ones(2))
    line = function.__code__.co_firstlineno + 2
    assert f"{HERE}:{line}" in str(caught[0].message)


def test_a_global_that_is_read_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refimpl.make_fx(lambda x: x + (COUNTER or 1))(torch.ones(2))


@pytest.mark.parametrize(
    ("op", "rule", "words"),
    [
        (aten.sin.default, lambda x: [x], "returned a list.*expected: a Tensor"),
        (aten.sin.default, lambda x: None, "returned a NoneType"),
        (aten.var_mean.correction, lambda x, *a, **k: x, "returned a Tensor.*a tuple of 2"),
        (aten.var_mean.correction, lambda x, *a, **k: (x, x, x), "returned a tuple of 3.*a tuple of 2"),
    ],
)
def test_a_decomposition_of_another_structure_is_refused(op: Any, rule: Any, words: str) -> None:
    with pytest.raises(BadDecomposition, match=f"(?s){words}") as raised:
        refimpl.make_fx(lambda x: op(x), decomposition_table={op: rule})(torch.ones(3))
    assert f"{HERE}:{rule.__code__.co_firstlineno}" in str(raised.value)


def test_a_decomposition_may_decline() -> None:
    graph_module = refimpl.make_fx(torch.sin, decomposition_table={aten.sin.default: lambda x: NotImplemented})(
        torch.ones(3)
    )
    assert aten.sin.default in [n.target for n in graph_module.graph.nodes]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_fake_tensor_from_elsewhere_is_not_taken_for_a_constant(mode: str) -> None:
    foreign = FakeTensorMode().from_tensor(torch.ones(3))
    with pytest.raises(NotTracked, match="pass it as an input"):
        refimpl.make_fx(lambda x: x + foreign, tracing_mode=mode)(torch.ones(3))


class _NoOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def test_the_error_about_an_untracked_tensor_runs_no_operators() -> None:
    tensor = torch.ones(2, 3)
    with _NoOperators():
        error = NotTracked(tensor)
    assert "a tensor of torch.float32 and shape (2, 3) (Tensor) is not tracked with proxy for" in str(error)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_captured_tensor_needs_leave_where_nothing_has_data(mode: str) -> None:
    weight = torch.ones(3)
    with pytest.raises(Exception, match="Please convert all Tensors to FakeTensors first"):
        refimpl.make_fx(lambda x: x + weight, tracing_mode=mode)(torch.ones(3))
    graph_module = refimpl.make_fx(lambda x: x + weight, tracing_mode=mode, _allow_non_fake_inputs=True)(torch.ones(3))
    assert graph_module(torch.ones(3)).tolist() == [2.0] * 3


def test_a_program_that_returns_a_set_is_refused() -> None:
    with pytest.raises(TypeError, match=r"returns a builtins\.set"):
        refimpl.make_fx(lambda x: {1, 2})(torch.ones(3))
