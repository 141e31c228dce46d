"""Tests of nested compile regions: one graph for equal calls in captured graphs and behind AOT autograd, and eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.capture.config import config
from refimpl.capture.public.errors import UncapturedHigherOrderOpError
from refimpl.export import export
from refimpl.tests.capture.compiled_graphs import Graphs, assert_as_eager, assert_same, calls, graphs_of

Tensor = torch.Tensor
region: Any = torch.compiler.nested_compile_region


def leaf(*sizes: int) -> Tensor:
    return torch.linspace(-1, 1, int(torch.Size(sizes).numel())).view(sizes).requires_grad_()


@region
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mul(x, y).sin()


@region
def several(x: Tensor, y: Tensor) -> Any:
    return [x * y, (x + y, None)], {"a": x.sin(), "n": 3}


@region
def dropped(x: Tensor) -> Tensor:
    return nn.functional.dropout(x.sin(), 0.5)


@region
def indices(x: Tensor) -> Any:
    return x.sin(), x.argmax()


@region
def two(x: Tensor, y: Tensor) -> Any:
    return x.sin(), y.cos()


@region
def powers(x: Tensor, n: int, *, factor: float = 1.0) -> Tensor:
    return x**n * factor


@region
def inner(x: Tensor) -> Tensor:
    return x.sin()


@region
def outer(x: Tensor) -> Tensor:
    return inner(x) * inner(x.cos())


@region
def sizes(x: Tensor) -> Any:
    return x + 1, x.shape


@region
def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


@region
def literal(x: Tensor) -> Tensor:
    return torch.tensor(64.0) * x


@region
def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda t: nn.functional.dropout(t, 0.5).cos(), x, use_reentrant=False)


@region
def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return x * y


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * x * 3


@region
def custom(x: Tensor) -> Tensor:
    return Squared.apply(x).exp()


def chained(x: Tensor, y: Tensor) -> Tensor:
    return product(product(x, y), y)


def of_containers(x: Tensor, y: Tensor) -> Any:
    first, second = several(x, y), several(y, x)
    first[0].append(x)
    return first, second[1]["a"] * second[1]["n"]


def random(x: Tensor, y: Tensor) -> Any:
    return dropped(x) + dropped(y) * torch.rand(())


def of_indices(x: Tensor, y: Tensor) -> Any:
    return indices(x), indices(y)[1]


def with_unused_results(x: Tensor, y: Tensor) -> Any:
    return two(x, x.cos())[0] + two(x, y)[0]


def of_numbers(x: Tensor, y: Tensor) -> Any:
    return powers(x, 2) + powers(y, 2) + powers(x, 3, factor=2.0)


def nested(x: Tensor, y: Tensor) -> Any:
    return outer(x) + outer(y)


def of_sizes(x: Tensor, y: Tensor) -> Any:
    return sizes(x), sizes(y)[0] * sizes(x)[1][0]


def conditional(x: Tensor, y: Tensor) -> Any:
    return chosen(x + 5) + chosen(y - 5)


def literals(x: Tensor, y: Tensor) -> Any:
    return literal(x) + literal(y)


def checkpoints(x: Tensor, y: Tensor) -> Any:
    return checkpointed(x) + checkpointed(y)


def with_modes(x: Tensor, y: Tensor) -> Any:
    return without_gradients(x) + without_gradients(y)


def of_functions(x: Tensor, y: Tensor) -> Any:
    return custom(x) + custom(y)


def appending(x: Tensor, y: Tensor) -> Any:
    found: list[Tensor] = []

    @region
    def noting(t: Tensor) -> Tensor:
        found.append(t.sin())
        return t.cos()

    return noting(x) + noting(y), found[0] * 2, found[1]


@region
def sine_and_cosine(t: Tensor) -> tuple[Tensor, Tensor]:
    return t.sin(), t.cos()


def with_one_tangent_for_two_results(x: Tensor, y: Tensor) -> Any:
    first = sine_and_cosine(x * y)
    second = sine_and_cosine(first[0])
    return first[1] + second[0] + second[1]


PROGRAMS: list[Callable[..., Any]] = [
    chained, of_containers, random, of_indices, with_unused_results, of_numbers, nested, of_sizes, conditional, literals,
    checkpoints, with_modes, of_functions, appending, with_one_tangent_for_two_results,
]  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_gradients_are_those_of_eager(program: Callable[..., Any], dynamic: bool) -> None:
    graphs = assert_as_eager(program, leaf(4), leaf(4), dynamic=dynamic)
    assert len(calls(graphs.captured[0], "invoke_subgraph", is_deep=True)) >= 2
    assert len(calls(graphs.forward[0], "invoke_subgraph", is_deep=True)) >= 2


@pytest.mark.parametrize(
    "program", [chained, of_containers, random, nested, literals, appending], ids=lambda p: p.__name__
)
def test_results_without_gradients_are_those_of_eager(program: Callable[..., Any]) -> None:
    graphs = assert_as_eager(program, leaf(4).detach(), leaf(4).detach())
    assert len(calls(graphs.forward[0], "invoke_subgraph", is_deep=True)) >= 2
    assert not graphs.backward


@pytest.mark.parametrize("program", [chained, of_containers, nested, conditional], ids=lambda program: program.__name__)
def test_a_graph_that_runs_without_a_compiler_has_gradients(program: Callable[..., Any]) -> None:
    kept: list[torch.fx.GraphModule] = []
    compiled = refimpl.compile(program, backend=lambda graph, _: (kept.append(graph), graph)[1], fullgraph=True)
    found = []
    for function in (compiled, program):
        x, y = leaf(4), leaf(4)
        leaves = [t for t in pytree.tree_leaves(function(x, y)) if isinstance(t, Tensor)]
        torch.autograd.backward([t.sum() for t in leaves])
        found.append((leaves, x.grad, y.grad))
    assert_same(*found)
    assert calls(kept[0], "invoke_subgraph")


def test_equal_calls_share_one_graph_forward_and_backward() -> None:
    graphs = assert_as_eager(chained, leaf(4), leaf(4))
    for module in (graphs.captured[0], graphs.forward[0], graphs.backward[0]):
        assert len(graphs_of(module)) == 1
        assert len(calls(module, "invoke_subgraph")) == 2
    names = [node.args[1] for node in calls(graphs.captured[0], "invoke_subgraph")]
    assert names == ["subgraph_0", "subgraph_0"]


@pytest.mark.parametrize(
    ("x", "y", "count"),
    [
        (leaf(4, 4), leaf(4, 4), 1),
        (leaf(4, 4), leaf(3, 3), 2),
        (leaf(4, 4), leaf(4, 4).detach().double().requires_grad_(), 2),
        (leaf(4, 4), leaf(4, 4).detach(), 2),
        (leaf(4, 4), leaf(4, 4).detach().t().requires_grad_(), 2),
    ],
    ids=["equal", "shape", "dtype", "requires_grad", "strides"],
)
def test_calls_share_a_graph_if_shapes_dtypes_strides_and_gradients_are_equal(x: Tensor, y: Tensor, count: int) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return inner(x), inner(x * 2), inner(y), inner(y * 2)

    graphs = assert_as_eager(program, x, y)
    assert len(graphs_of(graphs.captured[0])) == count
    assert len(graphs_of(graphs.forward[0])) == count


def test_what_a_region_closes_over_decides_which_graph_it_has() -> None:
    factor = 2

    @region
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    def program(x: Tensor) -> Tensor:
        nonlocal factor
        factor = 2
        y = scaled(scaled(x))
        factor = 3
        return scaled(scaled(y))

    graphs = assert_as_eager(program, leaf(4))
    assert len(graphs_of(graphs.captured[0])) == 2


@region
def square(x: Tensor) -> Tensor:
    return (x @ x).float()


def under_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = square(x.detach()) + square(x.detach())
    return y, square(x.detach()) + square(x.detach())


def under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        y = square(x) + square(x)
    return y, square(x) * square(x)


@pytest.mark.parametrize("program", [under_autocast, under_no_grad], ids=lambda program: program.__name__)
def test_calls_under_autocast_or_without_gradients_have_graphs_of_their_own(program: Callable[..., Any]) -> None:
    graphs = assert_as_eager(program, leaf(4, 4))
    assert len(graphs_of(graphs.captured[0])) == 2


def test_a_result_may_have_a_size_that_depends_on_data() -> None:
    @region
    def places(x: Tensor) -> Tensor:
        return x.nonzero() + 1

    with config.patch(capture_dynamic_output_shape_ops=True):
        assert_as_eager(lambda x: places(x).sum() + places(x - 1).sum(), torch.tensor([1.0, 0.0, 2.0]))
        with config.patch(inline_single_use_invoke_subgraph=False):
            graphs = assert_as_eager(lambda x: places(x).sum() + places(x - 1).sum(), torch.tensor([1.0, 0.0, 2.0]))
    assert len(calls(graphs.forward[0], "invoke_subgraph")) == 2


def test_a_region_that_is_called_once_is_a_part_of_its_caller() -> None:
    graphs = assert_as_eager(lambda x, y: product(x, y) + of_numbers(x, y), leaf(4), leaf(4))
    assert [node.args[1] for node in calls(graphs.captured[0], "invoke_subgraph")] == ["subgraph_1", "subgraph_1"]
    with config.patch(inline_single_use_invoke_subgraph=False):
        graphs = assert_as_eager(lambda x, y: product(x, y), leaf(4), leaf(4))
    assert len(calls(graphs.backward[0], "invoke_subgraph")) == 1
    with config.patch(inline_invoke_subgraph=True):
        graphs = assert_as_eager(lambda x, y: chained(x, y) + nested(x, y), leaf(4), leaf(4))
    assert not calls(graphs.captured[0], "invoke_subgraph", is_deep=True)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @region
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + x


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_of_one_class_share_a_graph_and_have_their_own_gradients() -> None:
    model, graphs = Layers(), Graphs()
    compiled = refimpl.compile(model, backend=graphs, fullgraph=True)
    found: list[Any] = []
    for module in (compiled, model):
        module(leaf(2, 4)).sum().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    assert_same(*found)
    for graph in (graphs.captured[0], graphs.forward[0]):
        assert len(graphs_of(graph)) == 1
        assert len(calls(graph, "invoke_subgraph")) == 3


class Counting(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(4))

    @region
    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        x.mul_(2)
        return x.sin() * self.count


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_region_writes_to_buffers_and_arguments_if_no_gradient_is_recorded(backend: str) -> None:
    found = []
    for compile_ in (lambda f: refimpl.compile(f, backend=backend, fullgraph=True), lambda f: f):
        module, x = Counting(), leaf(4).detach()
        y = compile_(lambda module, x: module(x) + module(x))(module, x)
        found.append((y, x, module.count))
    assert_same(*found)


def test_a_region_that_writes_to_an_operand_has_no_gradients() -> None:
    module = Counting()
    compiled = refimpl.compile(lambda x: module(x * 1) + module(x * 2), backend="aot_eager", fullgraph=True)
    with pytest.raises(
        RuntimeError, match="does not currently support training with in-place input or buffer mutations"
    ):
        compiled(leaf(4))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: several_aliases(x, x.view(2, 2)) + 1,
        lambda x: passing_on(x)[1],
        lambda x: of_one_memory(x)[1],
    ],
    ids=["inputs", "input and result", "results"],
)
def test_memory_that_a_region_shares_is_refused(program: Callable[..., Any]) -> None:
    x = leaf(4).detach()
    with pytest.raises(UncapturedHigherOrderOpError, match="Encountered aliasing during higher order op tracing"):
        refimpl.compile(program, backend="eager", fullgraph=True)(x)
    assert_same(refimpl.compile(program, backend="eager")(x), program(x))


@region
def several_aliases(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() + y.sum()


@region
def passing_on(x: Tensor) -> Any:
    return x, x.sin()


@region
def of_one_memory(x: Tensor) -> Any:
    y = x.sin()
    return y, y.view(2, 2)


def test_sizes_that_vary_are_captured_once() -> None:
    graphs = Graphs()

    def program(x: Tensor) -> Tensor:
        return sizes(x)[0] * sizes(x.sin())[1][0]

    compiled = refimpl.compile(program, backend=graphs, fullgraph=True)
    for size in (3, 4, 5, 6):
        ours, theirs = leaf(size), leaf(size)
        assert_same(compiled(ours), program(theirs))
        compiled(ours).sum().backward()
        program(theirs).sum().backward()
        assert_same(ours.grad, theirs.grad)
    assert len(graphs.captured) == 2


def test_an_expanded_tangent_and_two_backwards_give_the_gradients_of_eager() -> None:
    @region
    def flat(x: Tensor) -> Tensor:
        return x.sin().t().reshape(-1)

    def program(x: Tensor) -> Any:
        return flat(x).sum() + flat(x * 2).sum()

    graphs = assert_as_eager(program, leaf(3, 4))
    assert len(graphs_of(graphs.backward[0])) == 1


def test_strict_export_keeps_regions() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return product(x, y) + product(y, x)

    given = (leaf(4).detach(), leaf(4).detach() + 1)
    exported = export(Model(), given, strict=True)
    for program in (exported, exported.run_decompositions({})):
        assert_same(program.module()(*given), Model()(*given))
        assert len(calls(program.graph_module, "invoke_subgraph")) == 2
        assert len(graphs_of(program.graph_module)) == 1
