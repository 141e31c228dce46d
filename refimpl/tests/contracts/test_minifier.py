"""Graphs that fail are made small, and the checks that decide which graphs fail."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import refimpl
from refimpl.capture.repro.accuracy import backend_accuracy_fails, cast_to_fp64, run_fwd_maybe_bwd, same_two_models
from refimpl.capture.repro.minifier import dump_state, minifier
from refimpl.errors import BadParameter
from refimpl.trace.make_fx import make_fx

ATEN = torch.ops.aten


def _silent(*_: object) -> None: ...


def _has(target: Any) -> Callable[..., bool]:
    return lambda graph, inputs: any(node.target is target for node in graph.graph.nodes)


def _small(function: Any, inputs: list[torch.Tensor], fails: Any, **options: Any) -> tuple[list[str], list[Any]]:
    graph, values = minifier(make_fx(function)(*inputs), inputs, fails, _silent, **options)
    assert fails(graph, values)
    graph(*values)
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"], list(values)


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y = (y / 5).sigmoid()
    x = (x - 2).exp()
    x = torch.maximum(x, y)
    return (x * y).sum() + y.sum()


@pytest.mark.parametrize(
    ("target", "inputs"),
    [(ATEN.maximum.default, 2), (ATEN.sigmoid.default, 1), (ATEN.sum.default, 1), (ATEN.mul.Tensor, 2)],
)
def test_the_operator_that_fails_is_left(target: Any, inputs: int) -> None:
    names, values = _small(_chain, [torch.randn(3), torch.randn(3)], _has(target))
    assert names == [str(target)]
    assert len(values) == inputs


def test_two_operators_that_fail_together_are_left() -> None:
    def both(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        return _has(ATEN.sigmoid.default)(graph, inputs) and _has(ATEN.exp.default)(graph, inputs)

    names, values = _small(_chain, [torch.randn(3), torch.randn(3)], both)
    assert sorted(names) == ["aten.exp.default", "aten.sigmoid.default"]
    assert len(values) in (1, 2)


def test_the_step_that_makes_a_nan_is_left() -> None:
    def makes_nan(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        return not any(value.isnan().any() for value in inputs) and bool(graph(*inputs)[0].isnan().any())

    def function(x: torch.Tensor) -> Any:
        zero = (x * 4 + 1).sin()
        zero = zero - zero
        return ((zero / zero + 2) * 3,)

    names, values = _small(function, [torch.randn(4)], makes_nan)
    assert names == ["aten.div.Tensor"]
    assert len(values) == 1


def test_an_input_that_is_returned_is_left() -> None:
    def returns_an_input(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        return any(node.op == "placeholder" for node in graph.graph.output_node().all_input_nodes)

    names, values = _small(
        lambda a, b, c: (a.tan(), b, a * c.cos()), [torch.randn(2) for _ in range(3)], returns_an_input
    )
    assert names == []
    assert len(values) == 1


def test_calls_with_several_results() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        deviation, mean = torch.std_mean(a)
        return (deviation - b * mean,)

    names, values = _small(function, [torch.randn(4), torch.randn(4)], _has(ATEN.sub.Tensor))
    assert names == ["aten.sub.Tensor"]
    assert len(values) == 2
    names, values = _small(function, [torch.randn(4), torch.randn(4)], _has(operator.getitem))
    assert names[-1] == str(operator.getitem)
    assert len(values) == 1


def test_a_module_with_parameters_and_writes() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lin(x).relu_().add_(1).cos()

    graph, values = minifier(torch.fx.symbolic_trace(Written()), [torch.randn(2, 3)], _has("relu_"), _silent)
    assert [node.target for node in graph.graph.nodes if node.op.startswith("call")] == ["relu_"]
    assert len(values) == 1


def test_a_graph_that_raises_is_cut_too() -> None:
    def raises(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        try:
            graph(*inputs)
        except RuntimeError:
            return True
        return False

    graph = make_fx(lambda x, y: (x.sin() + 1) @ (y.cos() * 2))(torch.ones(2, 3), torch.ones(3, 2))
    small, values = minifier(graph, [torch.ones(2, 3), torch.ones(4, 2)], raises, _silent)
    assert [str(node.target) for node in small.graph.nodes if node.op == "call_function"] == ["aten.mm.default"]
    assert [tuple(value.shape) for value in values] == [(2, 3), (4, 2)]


def test_a_graph_that_does_not_fail_and_a_granularity_that_is_none() -> None:
    graph = make_fx(torch.sin)(torch.ones(1))
    with pytest.raises(RuntimeError, match="did not fail"):
        minifier(graph, [torch.ones(1)], lambda *_: False, _silent)
    with pytest.raises(BadParameter):
        minifier(graph, [torch.ones(1)], lambda *_: True, _silent, max_granularity=3)


def test_each_smaller_graph_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sizes: list[int] = []
    inputs = [torch.randn(3), torch.randn(3)]
    minifier(make_fx(_chain)(*inputs), inputs, _has(ATEN.exp.default), lambda g, _: sizes.append(len(g.graph.nodes)))
    assert sizes
    assert sizes[-1] == 3
    dump_state(make_fx(torch.sin)(torch.ones(2)), [torch.ones(2, dtype=torch.float64)])
    assert "torch.float64" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------- accuracy


def _graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))


def _slightly_wrong(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: graph(*args) * 1.1


def test_a_backend_with_other_values_fails() -> None:
    inputs = [torch.randn(2, 3, requires_grad=True)]
    assert backend_accuracy_fails(_graph(), inputs, _slightly_wrong)
    assert not backend_accuracy_fails(_graph(), inputs, lambda graph, _: graph)
    assert not backend_accuracy_fails(_graph(), inputs, lambda *_: 1 / 0)  # another bug


def test_gradients_are_compared_unless_only_forward_is() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient / 2

    graph, inputs = _graph(), [torch.randn(2, 3, requires_grad=True)]
    wrong = lambda *args: Halved.apply(graph(*args))  # noqa: E731
    assert not same_two_models(graph, wrong, inputs)
    assert same_two_models(graph, wrong, inputs, only_fwd=True)


def test_what_compile_made_of_a_module_has_the_gradients_of_the_module() -> None:
    module, x = nn.Linear(3, 1), torch.ones(2, 3)
    assert same_two_models(module, refimpl.compile(module, backend="eager"), [x])
    assert not same_two_models(module, refimpl.compile(nn.Linear(3, 1), backend="eager"), [x])


def test_results_and_gradients_of_a_run() -> None:
    module, x = nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)
    out, of_parameters, (of_x,) = run_fwd_maybe_bwd(module, [x])
    torch.testing.assert_close(out, module(x))
    assert of_parameters["bias"].abs() == 2
    assert of_x.shape == x.shape
    assert x.grad is None  # the argument was copied


def test_a_graph_in_float64() -> None:
    graph = make_fx(lambda x: torch.zeros(2, dtype=torch.float32) + x.sum(dtype=torch.float32))(torch.ones(3))
    model, inputs = cast_to_fp64(graph, [torch.ones(3), torch.ones(2, dtype=torch.int64)])
    assert model(inputs[0]).dtype is torch.float64
    assert inputs[1].dtype is torch.int64
