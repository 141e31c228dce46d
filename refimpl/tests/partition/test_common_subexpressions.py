"""fx_graph_cse, and the small passes beside it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch._functorch.compile_utils import fx_graph_cse as torch_fx_graph_cse

from refimpl.aot.partition.common_subexpressions import fx_graph_cse
from refimpl.tests.partition.joint_graphs import calls
from refimpl.trace.make_fx import make_fx
from refimpl.upstream.compilers import strip_overloads

aten = torch.ops.aten


def merged(function: Any, *inputs: torch.Tensor) -> int:
    """How many nodes go; that values stay and a second pass finds nothing is checked here."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    graph = fx_graph_cse(module.graph)
    graph.lint()
    after = torch.fx.GraphModule(module, graph)
    torch.manual_seed(0)
    expected = module(*[x.clone() for x in inputs])
    torch.manual_seed(0)
    actual = after(*[x.clone() for x in inputs])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert len(fx_graph_cse(graph).nodes) == len(graph.nodes)
    return len(module.graph.nodes) - len(graph.nodes)


def _twice_rand(x):
    return torch.rand_like(x) + torch.rand_like(x)


def _default_argument(x):
    return x.sum(dim=1) + x.sum(dim=1, keepdim=False) + x.sum(dim=1)


def _written_between(x):
    a = x + 1
    x.mul_(2)
    return a * (x + 1)


def _one_of_two_is_written(x):
    a, b = x + 1, x + 1
    a.add_(1)
    return a * b


def _view_of_what_is_written(x):
    a, b = x + 1, x + 1
    a.view(-1)[0].fill_(7)
    return a * b


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.cos() + x.sin(), 0),
        (lambda x: x.cos() * x.cos(), 1),
        (lambda x: x.cos().sin() * x.cos().sin(), 2),
        (lambda x: x.sum([0, 1]) + x.sum([0, 1]) + x.sum(1), 1),
        (_default_argument, 2),
        (lambda x: torch.cat((x, x)) + torch.cat((x, x)), 1),
        (lambda x: torch.cat((x, x)) + torch.cat((x, x), 1).t(), 0),
        (lambda x: torch.ones_like(x) + torch.ones_like(x), 1),
        (lambda x: torch.full((2, 2), 1) + torch.full((2, 2), 1.0) + x, 0),
        (lambda x: (x * 1.0).sin() + (x * 1).sin(), 0),
        (lambda x: torch.copysign(x, 0.0).sin() + torch.copysign(x, -0.0).sin(), 0),
        (lambda x: x.max(1).values * x.max(1).indices, 3),
        (_twice_rand, 0),
        (lambda x: torch.nn.functional.dropout(x, 0.5) * torch.nn.functional.dropout(x, 0.5), 0),
        (_written_between, 0),
        (_one_of_two_is_written, 0),
        (_view_of_what_is_written, 0),
    ],
)
def test_how_many_calls_are_merged(function: Any, expected: int) -> None:
    assert merged(function, torch.randn(2, 2)) == expected


def test_returned_tensors_stay_tensors_of_their_own() -> None:
    assert merged(lambda x: (x.cos(), x.cos()), torch.randn(2, 2)) == 0
    assert merged(lambda x: (x.t(), x.t()), torch.randn(2, 2)) == 0
    assert merged(lambda x: (x.cos().view(4), x.cos().t()), torch.randn(2, 2)) == 0
    assert merged(lambda x: (x.max(1).values, x.max(1).indices), torch.randn(2, 2)) == 0
    assert merged(lambda x: (x.cos().sin(), x.cos().sin()), torch.randn(2, 2)) == 1


def test_inputs_and_uninitialised_memory_are_never_merged() -> None:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    memory = [graph.call_function(aten.empty.memory_format, ([2],)) for _ in range(2)]
    graph.output(graph.call_function(aten.cat.default, ([a, b, *memory],)))
    assert len(fx_graph_cse(graph).nodes) == len(graph.nodes)


def test_sizes_are_merged() -> None:
    module = make_fx(lambda x: x.new_zeros(x.shape[0] * 2) + x.new_zeros(x.shape[0] * 2), tracing_mode="symbolic")(
        torch.randn(3)
    )
    after = torch.fx.GraphModule(module, fx_graph_cse(module.graph))
    assert len(calls(after, aten.new_zeros)) == 1
    assert after(torch.randn(5)).shape == (10,)


def test_meta_and_names_are_kept() -> None:
    module = make_fx(lambda x: x.cos() * x.cos() + 1, tracing_mode="fake")(torch.randn(2))
    for node in module.graph.nodes:
        node.meta["stack_trace"] = node.name
    for node in fx_graph_cse(module.graph).nodes:
        assert node.meta["stack_trace"] == node.name


def random_graph(seed: int) -> torch.fx.GraphModule:
    generator = random.Random(seed)

    def function(x):
        values = [x]
        for _ in range(100):
            op = generator.choice([torch.clone, torch.cos, torch.tanh, torch.nn.functional.gelu])
            values.append(op(generator.choice(values)))
        return values[-1]

    module = torch.fx.symbolic_trace(function)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


@pytest.mark.parametrize("seed", range(20))
def test_graphs_of_torch_functions_lose_what_upstream_removes(seed: int) -> None:
    module = random_graph(seed)
    graph = fx_graph_cse(module.graph)
    assert len(graph.nodes) <= len(torch_fx_graph_cse(module.graph).nodes) + 1, "but for what the result's memory is"
    x = torch.randn(2, 2)
    torch.testing.assert_close(torch.fx.GraphModule(module, graph)(x), module(x), rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_graphs_of_overloads_lose_what_upstream_removes(seed: int) -> None:
    module = make_fx(random_graph(seed), tracing_mode="fake")(torch.randn(2, 2))
    assert len(fx_graph_cse(module.graph).nodes) == len(torch_fx_graph_cse(module.graph).nodes)


def test_strip_overloads() -> None:
    module = make_fx(lambda x: x + 1)(torch.randn(2))
    (add,) = calls(module, aten.add)
    strip_overloads(module)
    assert add.target is aten.add
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))
