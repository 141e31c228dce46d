"""What arrives below autograd in a pre-dispatch trace is worked out once, and nothing else of the trace changes by it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import refimpl
from refimpl.trace import fake_kernels


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def _layers(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
    seen = []
    for _ in range(3):
        x = torch.nn.functional.layer_norm(torch.nn.functional.linear(x, weight).relu(), [x.shape[-1]])
        view = x.transpose(0, 1)
        seen.append((x.requires_grad, x.grad_fn is not None, x.is_leaf, view._is_view(), view._base is x, x._version))
    with torch.no_grad():
        seen.append((torch.nn.functional.linear(x, weight).requires_grad,))
    assert seen[:3] == [(True, True, False, True, True, 0)] * 3, seen
    assert seen[3] == (False,)
    x.add_(1)
    return x, x._version == 1, x.requires_grad


def _trace(mode: str) -> torch.fx.GraphModule:
    arguments = (torch.ones(4, 6), torch.ones(6, 6, requires_grad=True))
    return refimpl.make_fx(_layers, tracing_mode=mode, pre_dispatch=True)(*arguments)


def test_repeated_calls_reach_the_fake_kernels_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(fake_kernels, "_STATIC_RESULTS", {})
    made: list[Any] = []
    recipe = fake_kernels._recipe
    monkeypatch.setattr(fake_kernels, "_recipe", lambda *a: made.append(1) or recipe(*a))
    first = _trace("fake")
    worked_out = len(made)
    calls = [str(n.target) for n in first.graph.nodes if n.op == "call_function"]
    assert calls.count("aten.linear.default") == 4
    assert worked_out < 12  # t, addmm or mm, relu, layer norm, transpose, add_: not three times over
    second = _trace("fake")
    assert len(made) == worked_out
    assert str(first.graph) == str(second.graph)


def test_symbolic_sizes_and_guards_are_those_of_the_first_call() -> None:
    graph_module = _trace("symbolic")
    linears = [n for n in graph_module.graph.nodes if n.target is torch.ops.aten.linear.default]
    shapes = {str(tuple(n.meta["val"].shape)) for n in linears}
    assert len(linears) == 4
    assert len(shapes) == 1
    x, weight = torch.randn(4, 6), torch.randn(6, 6, requires_grad=True)
    expected = _layers(x.clone(), weight)[0]
    actual = graph_module(x.clone(), weight)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_mode_of_the_program_sees_every_call() -> None:
    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with counting:
            for _ in range(3):
                x = torch.nn.functional.linear(x, weight)
        return x

    counting = _Counting()
    run(torch.ones(4, 6), torch.ones(6, 6))
    eager = counting.calls.copy()
    counting.calls.clear()
    refimpl.make_fx(run, tracing_mode="fake", pre_dispatch=True)(torch.ones(4, 6), torch.ones(6, 6))
    assert len(eager) >= 6
    assert [call for call in counting.calls if call in eager] == eager
