"""Tests of nested compile regions: one graph for equal calls in captured graphs and behind AOT autograd, and eager's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import aot_autograd as torch_aot
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.capture.config import config
from refimpl.capture.higher_order import compile_regions
from refimpl.capture.public.errors import UncapturedHigherOrderOpError, Unsupported
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


def test_a_backend_that_uses_torch_s_aot_autograd_gets_each_call_its_own_backward() -> None:
    """Torch keeps the backward graphs of a region where they are told apart by the tangents that arrive."""

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        compile_with_torch: Any = torch_aot.aot_module_simplified
        return compile_with_torch(graph, examples, lambda module, _: module)

    found = []
    for function in (
        refimpl.compile(with_one_tangent_for_two_results, backend=backend),
        with_one_tangent_for_two_results,
    ):
        x, y = leaf(4), leaf(4)
        results = function(x, y)
        results.sum().backward()
        found.append((results, x.grad, y.grad))
    assert_same(*found)


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


class Residual(nn.Module):
    """Layers of one class, which close over a buffer and a parameter, and a region that returns containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Shifted() for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x, 2)
        found, named = several(x, x + 1)
        return found[0] + named["a"] * named["n"], several(x, x)[0]


class Shifted(nn.Module):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))

    @region
    def forward(self, x: Tensor, factor: int) -> Tensor:
        return x * self.weight * factor + self.shift


def test_non_strict_export_keeps_regions_if_all_are_kept() -> None:
    model, x = Residual(), leaf(4)
    plain = export(model, (x,), strict=False)
    assert not calls(plain.graph_module, "invoke_subgraph")
    with config.patch(inline_single_use_invoke_subgraph=False):
        exported = export(model, (x,), strict=False)
    assert len(calls(exported.graph_module, "invoke_subgraph")) == 5
    assert [node.args[1] for node in calls(exported.graph_module, "invoke_subgraph")] == [
        *["subgraph_0"] * 3, "subgraph_1", "subgraph_2",
    ]  # fmt: skip
    assert len([*exported.graph_module.children()]) == 3
    for program in (exported, exported.run_decompositions({})):
        for given in (x, leaf(4) * 3):
            assert_same(program.module()(given), model(given))


# --------------------------------------------------------------- calls that use the graph of an earlier call of the region


class Scaling(nn.Module):
    """Reads a number, a parameter, a buffer and a submodule."""

    shift: Tensor

    def __init__(self, factor: float = 2.0, size: int = 4) -> None:
        super().__init__()
        torch.manual_seed(int(factor))
        self.factor = factor
        self.inner = nn.Linear(size, size)
        self.register_buffer("shift", torch.arange(float(size)))

    @region
    def forward(self, x: Tensor, *, sign: int = 1) -> Any:
        return self.inner(x) * self.factor * sign, x.sin() + self.shift


def _tripled(module: Any, given: Any, result: Any) -> Any:
    return result * 3


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions of the regions that are captured, in order."""
    refimpl.reset()
    found: list[Any] = []
    capture = compile_regions.capture_region

    def capturing(domain: Any, graph: Any, function: Any, given: Any, named: Any) -> Any:
        found.append(function)
        return capture(domain, graph, function, given, named)

    monkeypatch.setattr(compile_regions, "capture_region", capturing)
    return found


def assert_captured(found: list[Any], count: int, model: Any, *given: Any) -> None:
    """So many regions of a call are captured, and results and gradients are those of eager, also of a later call."""
    copies = [model, copy.deepcopy(model)] if isinstance(model, nn.Module) else [model, model]
    run = [refimpl.compile(copies[0], backend="aot_eager", fullgraph=True), copies[1]]
    for turn in range(2):
        ended = []
        for function, module in zip(run, copies, strict=True):
            taken = [value.detach().clone().requires_grad_(value.requires_grad) for value in given]
            results = pytree.tree_leaves(function(*taken))
            sum(result.sum() for result in results if result.requires_grad).backward()  # pyright: ignore
            of_module = [p.grad for p in module.parameters()] if isinstance(module, nn.Module) else []
            ended.append((results, [value.grad for value in taken], of_module))
        assert_same(*ended)
        assert len(found) == count, f"turn {turn}"


class Stack(nn.Module):
    def __init__(self, *layers: Scaling) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        for layer in self.layers:
            y, z = layer(y)
            y = y + z
        return y


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Stack(Scaling(), Scaling(), Scaling()), 1),
        (Stack(Scaling(2.0), Scaling(3.0), Scaling(2.0)), 2),
        (Stack(*[Scaling()] * 3), 1),
    ],
    ids=["equal", "factors", "one"],
)
def test_a_layer_is_captured_if_no_equal_one_was(captured: list[Any], model: nn.Module, count: int) -> None:
    assert_captured(captured, count, model, leaf(4, 4))


def test_a_layer_with_other_shapes_hooks_or_shared_weights_is_captured(captured: list[Any]) -> None:
    hooked, frozen, tied, first = Scaling(), Scaling(), Scaling(), Scaling()
    hooked.inner.register_forward_hook(_tripled)
    frozen.inner.weight.requires_grad_(False)
    tied.inner.bias = nn.Parameter(torch.ones(1))  # another shape
    assert_captured(captured, 4, Stack(first, hooked, frozen, tied), leaf(4, 4))


def test_layers_that_share_a_weight_are_right(captured: list[Any]) -> None:
    first, second, third = Scaling(), Scaling(), Scaling()
    second.inner.weight = first.inner.weight
    assert_captured(captured, 1, Stack(first, second, third), leaf(4, 4))


def test_what_is_read_of_a_layer_that_is_not_captured_is_guarded(captured: list[Any]) -> None:
    model = Stack(Scaling(), Scaling())
    compiled = refimpl.compile(model, backend="aot_eager", fullgraph=True)
    x = leaf(4, 4)
    assert_same(compiled(x), model(x))
    assert len(captured) == 1
    changes: list[Callable[[Any], Any]] = [
        lambda layer: setattr(layer, "factor", 5.0),
        lambda layer: layer.inner.register_forward_hook(_tripled),
        lambda layer: setattr(layer, "shift", torch.ones(1)),
        lambda layer: setattr(layer, "inner", nn.Identity()),
    ]
    for change in changes:
        change(model.layers[1])
        assert_same(compiled(x), model(x))


def flagged(x: Tensor) -> Tensor:
    return x * (3 if hasattr(x, "flag") else 2)


def twice_of_flagged(x: Tensor, y: Tensor) -> Tensor:
    marked = region(flagged)
    return marked(x) + marked(y)


def of_one_or_two(x: Tensor, y: Tensor) -> Any:
    return same_or_not(x, y), same_or_not(x, x), same_or_not(y, x), same_or_not(y, y)


@region
def same_or_not(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() if x is y else x * y


def of_constants(x: Tensor, y: Tensor) -> Any:
    return [powers(x, 2), powers(y, 2), powers(y, 3), powers(y, 2, factor=2.0), powers(x, n=2)]


def of_other_shapes(x: Tensor, y: Tensor) -> Any:
    return inner(x), inner(x[:2]), inner(y), inner(y[:2].clone()), inner(x.detach()), inner(y.sin())


def written_between(x: Tensor, y: Tensor) -> Any:
    z = (x * y).detach()
    first = inner(z)
    z.add_(1)
    return first + x + y, inner(z), inner(z * 1)


def given_new_data(x: Tensor, y: Tensor) -> Any:
    z = (x * y).detach()
    first = inner(z)
    z.data = y.detach() * 2
    return first + x, inner(z)


def of_random_numbers(x: Tensor, y: Tensor) -> Any:
    return counting(x), counting(y)


_COUNTS: list[int] = []


@region
def counting(x: Tensor) -> Tensor:
    _COUNTS.append(1)
    return x * len(_COUNTS)


@pytest.mark.parametrize(
    ("program", "count"),
    [(of_one_or_two, 4), (of_constants, 4), (of_other_shapes, 5), (written_between, 2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_are_captured_where_they_read_something_else(
    captured: list[Any], program: Callable[..., Any], count: int
) -> None:
    assert_captured(captured, count, program, leaf(4), leaf(4) + 2)


def test_a_region_that_changes_an_object_is_captured_each_time(captured: list[Any]) -> None:
    compiled = refimpl.compile(of_random_numbers, backend="aot_eager", fullgraph=True)
    found = []
    for function in (compiled, of_random_numbers):
        _COUNTS.clear()
        found.append((function(leaf(4), leaf(4)), len(_COUNTS)))
    assert_same(*found)
    assert len(captured) == 2


def test_an_object_that_changes_between_calls_is_seen(captured: list[Any]) -> None:
    layer = Scaling()
    factors = [2.0]

    @region
    def scaled(x: Tensor) -> Tensor:
        return x * factors[0]

    def program(x: Tensor) -> Any:
        layer.factor = 2.0
        first = layer(x)[0] + scaled(x)
        layer.factor = 3.0
        factors[0] = 5.0
        second = layer(x)[0] + scaled(x)
        factors[0] = 2.0
        return first, second

    assert_captured(captured, 4, program, leaf(4, 4))


def test_attributes_and_new_data_of_tensors_are_seen(captured: list[Any]) -> None:
    compiled = refimpl.compile(twice_of_flagged, backend="aot_eager", fullgraph=True)
    x, y = leaf(4), leaf(4)
    y.flag = True  # pyright: ignore[reportAttributeAccessIssue]
    assert_same(compiled(x, y), twice_of_flagged(x, y))
    assert_same(refimpl.compile(given_new_data, backend="aot_eager")(x, y), given_new_data(x, y))


def test_a_region_may_not_need_more_graphs_than_it_says() -> None:
    few: Any = region(max_reuse_entries=2)

    @few
    def scaled(x: Tensor, factor: int) -> Tensor:
        return x * factor

    def two_factors(x: Tensor) -> Tensor:
        return scaled(x, 1) + scaled(x, 2) + scaled(x, 1)

    def three_factors(x: Tensor) -> Tensor:
        return scaled(x, 1) + scaled(x, 2) + scaled(x, 3)

    assert_as_eager(two_factors, leaf(4))
    with pytest.raises(
        UncapturedHigherOrderOpError, match="exceeded maximum reuse entries: its calls need more than 2"
    ):
        refimpl.compile(three_factors, backend="aot_eager", fullgraph=True)(leaf(4))


def test_only_capture_names_the_graph_of_a_region() -> None:
    def program(x: Tensor) -> Any:
        return torch.ops.higher_order.invoke_subgraph(lambda x: (x.sin(),), "mine", x)

    with pytest.raises(Unsupported, match="Directly using invoke_subgraph is not supported"):
        refimpl.compile(program, backend="eager", fullgraph=True)(leaf(4))


def test_a_break_within_a_region_says_so() -> None:
    @region
    def broken(x: Tensor) -> Tensor:
        refimpl.graph_break()
        return x.sin()

    with pytest.raises(
        UncapturedHigherOrderOpError, match=r"Higher Order Operator: torch\.ops\.higher_order\.invoke_subgraph"
    ):
        refimpl.compile(lambda x: broken(x), backend="eager", fullgraph=True)(leaf(4))


def test_nodes_of_a_region_end_at_the_line_of_the_program_that_calls_it() -> None:
    def program(x: Tensor) -> Tensor:
        return inner(x) + inner(x * 2)

    graphs = assert_as_eager(program, leaf(4))
    for node in calls(graphs.captured[0], "invoke_subgraph"):
        assert node.meta["stack_trace"].endswith("    return inner(x) + inner(x * 2)\n")
