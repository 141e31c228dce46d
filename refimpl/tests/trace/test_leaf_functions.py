"""Leaf functions run as they are when a graph runs: one node in every kind of graph, with eager's values and gradients."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import refimpl
import refimpl.export
from refimpl._torch import leaf_functions, pytree
from refimpl.capture.config import config
from refimpl.capture.public.errors import Unsupported
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.archive.errors import ArchiveError
from refimpl.pipeline import compile_aot
from refimpl.tests.corpus.compare import assert_same, observe

pytestmark = pytest.mark.skipif(leaf_functions is None, reason="this torch has no leaf functions")
CALLS: list[str] = []
HOOKED: list[float] = []
Program = Callable[..., Any]


def leaf(fake: Program, **options: Any) -> Callable[[Program], Any]:
    """Makes a leaf function with this fake; without leaf functions in torch, the function itself."""

    def decorate(function: Program) -> Any:
        if leaf_functions is None:
            return function
        from torch._dynamo.decorators import leaf_function  # noqa: PLC0415  torch 2.13

        made: Any = leaf_function(**options)(function) if options else leaf_function(function)
        made.register_fake(fake)
        return made

    return decorate


def like_first(x: Tensor, *_: Any) -> tuple[Tensor]:
    return (torch.empty_like(x),)


@leaf(lambda x, y: (torch.empty_like(x), torch.empty_like(x)))
def products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    CALLS.append("products")
    return x.sin() * y, x + 1


@leaf(lambda x, parts, scale=2.0: {"a": torch.empty_like(x), "b": [torch.empty_like(x)]})
def in_containers(x: Tensor, parts: dict[str, Tensor], scale: float = 2.0) -> dict[str, Any]:
    return {"a": x * parts["k"] * scale, "b": [x + 1]}


@leaf(lambda x, y: None, mutates_args={"x"})
def advance(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@leaf(lambda x, y: (torch.empty_like(x),), mutates_args={"x", "y"})
def advance_both(x: Tensor, y: Tensor) -> tuple[Tensor]:
    x.add_(1)
    y.mul_(2)
    return (x * y,)


@leaf(lambda layer, x: (x.new_empty(x.shape[0], 2),))
def apply(layer: Any, x: Tensor) -> tuple[Tensor]:
    return (layer(x),)


@leaf(lambda layer, x: (torch.empty_like(x),), mutates_args={"layer.running_mean", "layer.running_var"})
def normalise(layer: Any, x: Tensor) -> tuple[Tensor]:
    return (torch.nn.functional.batch_norm(x, layer.running_mean, layer.running_var, training=True),)


@leaf(lambda x: None)
def watch(x: Tensor) -> None:
    CALLS.append("watch")


if leaf_functions is not None:
    watch.register_multi_grad_hook(lambda gradient: HOOKED.append(gradient.sum().item()))

LAYER = torch.nn.Linear(3, 2)


def several_results(x: Tensor, y: Tensor) -> Any:
    first, second = products(x * 2, y)
    return first + 1, second * y


def containers(x: Tensor, y: Tensor) -> Any:
    found = in_containers(x, {"k": y}, scale=3.0)
    return found["a"] + found["b"][0]


def write_to_intermediate(x: Tensor, y: Tensor) -> Any:
    made = y.detach().clone()
    advance(made, y.detach())
    return made * x


def write_to_view(x: Tensor, y: Tensor) -> Any:
    made = torch.zeros(2, 3)
    advance(made[1], y.detach())
    return made * x


def module(x: Tensor, y: Tensor) -> Any:
    return apply(LAYER, (x * y)[None])[0] * 2


def watched(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    watch(z)
    return z * y


PROGRAMS = (several_results, containers, write_to_intermediate, write_to_view, module, watched)


class Module(torch.nn.Module):
    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def captured(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []
    return refimpl.compile(program, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True), graphs


def captured_and_traced(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    return refimpl.compile(program, backend="aot_eager", fullgraph=True), []


def compiled(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []
    return compile_aot(program, backend=lambda graph, _: graphs.append(graph) or graph), graphs


def traced(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    graph = refimpl.make_fx(program, tracing_mode="symbolic")(*make()[1])
    return graph, [graph]


def exported(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    found = refimpl.export.export(Module(program), tuple(make()[1]))
    return found.module(), [found.graph_module]


def decomposed(program: Program, make: Any) -> tuple[Program, list[torch.fx.GraphModule]]:
    found = refimpl.export.export(Module(program), tuple(make()[1])).run_decompositions()
    return found.module(), []


WAYS = (captured, captured_and_traced, compiled, traced, exported, decomposed)


def make() -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(2)
    leaves = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
    return leaves, leaves


@pytest.mark.fractional
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_values_gradients_and_calls_are_those_of_eager(way: Any, program: Program) -> None:
    run, graphs = way(program, make)
    CALLS.clear()
    HOOKED.clear()
    expected = observe(program, make)
    seen = (list(CALLS), list(HOOKED))
    if way in (captured, captured_and_traced, compiled):
        run(*make()[1])  # the call that compiles
    CALLS.clear()
    HOOKED.clear()
    assert_same(expected, observe(run, make), parts=("structure", "results", "arguments", "gradients", "random_state"))
    assert seen == (CALLS, HOOKED)
    names = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    effects = [node.args[1] for graph in graphs for node in graph.graph.nodes if "with_effects" in str(node.target)]
    assert not graphs or "invoke_leaf_function" in [*names, *map(str, effects)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_argument_is_written(way: Any) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        advance(x, y)
        return x * 2

    def plain() -> tuple[list[Tensor], list[Tensor]]:
        return [], [torch.ones(3), torch.arange(3.0)]

    run, _ = way(program, plain)
    assert_same(observe(program, plain), observe(run, plain), parts=("results", "arguments"))
    assert_same(observe(program, plain, calls=2), observe(run, plain, calls=2), parts=("results", "arguments"))


@pytest.mark.parametrize("of", [lambda x: (x, x), lambda x: (x[:2], x[1:]), lambda x: (x, x.view(3, 1))])
def test_written_arguments_that_share_memory_are_refused_and_break_a_graph(of: Program) -> None:
    """The node writes to copies, of which a write to one does not show in the other."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        return advance_both(*of(x))[0] * 2

    def plain() -> tuple[list[Tensor], list[Tensor]]:
        return [], [torch.arange(3.0), torch.ones(3)]

    for way in (compiled, traced, exported):
        with pytest.raises(UnsupportedByRefimpl, match="shares memory with another argument"):
            way(program, plain)[0](*plain()[1])
    with pytest.raises(Unsupported, match="read_after_write"):
        captured(program, plain)[0](*plain()[1])
    run = refimpl.compile(program, backend="aot_eager")
    assert_same(observe(program, plain), observe(run, plain), parts=("results", "arguments"))


@pytest.mark.parametrize("way", [captured_and_traced, compiled, traced], ids=lambda way: way.__name__)
def test_parts_of_one_tensor_that_are_apart_are_written(way: Any) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return advance_both(x[0], x[1])[0] * y[0]

    def plain() -> tuple[list[Tensor], list[Tensor]]:
        return [], [torch.arange(6.0).view(2, 3), torch.ones(2, 3)]

    run, _ = way(program, plain)
    assert_same(observe(program, plain), observe(run, plain), parts=("results", "arguments"))


@pytest.mark.parametrize("way", [captured, captured_and_traced], ids=lambda way: way.__name__)
def test_arguments_that_share_memory_with_others_are_captured(way: Any) -> None:
    """Where arguments share memory, capture watches each call for writes."""

    def twice(x: Tensor, y: Tensor) -> Tensor:
        return products(x[:2], x[1:])[0] + products(y, y)[1].sum()

    for one in (twice, lambda x, y: products(x, x)[0], lambda x, y: products(torch.complex(x, y), y)[0].real):
        run, _ = way(one, make)
        assert_same(observe(one, make), observe(run, make), parts=("results", "gradients"))


@pytest.mark.parametrize("way", [way for way in WAYS if way is not traced], ids=lambda way: way.__name__)
def test_buffers_of_a_module_are_written(way: Any) -> None:
    class Normalised(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return normalise(self.layer, x)[0] + self.layer.running_mean

    def plain() -> tuple[list[Tensor], list[Tensor]]:
        x = torch.arange(12.0).view(4, 3).square().requires_grad_()
        return [x], [x]

    expected = Normalised()
    module = Normalised()
    if way in (exported, decomposed):
        found = refimpl.export.export(module, tuple(plain()[1]))
        run: Any = (found.run_decompositions() if way is decomposed else found).module()
        state = run
    else:
        run, state = way(module, plain)[0], module
    for _ in range(2):
        assert_same(observe(expected, plain), observe(run, plain), parts=("results", "gradients"))
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(state.named_buffers())[name], buffer)


@pytest.mark.parametrize("way", [captured, captured_and_traced, compiled], ids=lambda way: way.__name__)
def test_calls_whose_backwards_come_later_keep_their_own_history(way: Any) -> None:
    run, _ = way(several_results, make)
    pairs = [[torch.full((3,), number, requires_grad=True) for number in (start, start + 1)] for start in (1.0, 3.0)]
    results = [run(*pair) for pair in pairs]
    for pair, result in zip(pairs, results, strict=True):
        expected = torch.autograd.grad([part.sum() for part in several_results(*pair)], pair)
        found = torch.autograd.grad([part.sum() for part in result], pair)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", [captured_and_traced, compiled], ids=lambda way: way.__name__)
def test_calls_in_threads_keep_their_own_history(way: Any) -> None:
    """The threads change between what the forward keeps and what the backward reads."""
    run, _ = way(lambda x: products(x, x)[0] * 2, make)
    x = torch.zeros(2, requires_grad=True)
    torch.autograd.grad(run(x).sum(), x)  # compiles
    expected, found = {}, {}
    together = threading.Barrier(4)

    def call(number: int) -> None:
        for turn in range(40):
            x = torch.full((2,), number + turn / 64, requires_grad=True)
            expected[number, turn] = torch.autograd.grad((x.sin() * x * 2).sum(), x)[0].tolist()
            together.wait(30)
            found[number, turn] = torch.autograd.grad(run(x).sum(), x)[0].tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert {key: pytest.approx(value) for key, value in expected.items()} == found


def test_the_sizes_of_a_graph_may_vary() -> None:
    graph = refimpl.make_fx(several_results, tracing_mode="symbolic")(torch.ones(3), torch.ones(3))
    others = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(graph(*others), several_results(*others))


def test_a_module_that_comes_and_goes_is_guarded() -> None:
    run = refimpl.compile(lambda layer, x: apply(layer, x)[0], backend="eager", fullgraph=True)
    x = torch.randn(4, 3)
    for layer in (torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)):
        torch.testing.assert_close(run(layer, x), layer(x))


def test_what_a_graph_cannot_have_is_refused_by_name() -> None:
    from torch._dynamo.decorators import leaf_function  # noqa: PLC0415  torch 2.13

    without_fake = leaf_function(lambda x: (x,))
    with pytest.raises(Unsupported, match="fake"):
        refimpl.compile(lambda x: without_fake(x), fullgraph=True)(torch.ones(2))
    counted: Any = leaf_function(lambda x: (x, 3))
    counted.register_fake(lambda x: (x, 999))
    with pytest.raises(Unsupported, match="op_returns"):
        refimpl.compile(lambda x: counted(x), fullgraph=True)(torch.ones(2))
    program = refimpl.export.export(Module(several_results), (torch.ones(3), torch.ones(3)))
    with pytest.raises(ArchiveError, match="_LeafCallable"):
        refimpl.export.save(program, io.BytesIO())
    assert pytree.tree_leaves(refimpl.export.unflatten(program)(torch.ones(3), torch.ones(3)))


@leaf(lambda x: (x,))
def itself(x: Tensor) -> tuple[Tensor]:
    return (x,)


@leaf(lambda x: (x.view(-1),))
def flat_view(x: Tensor) -> tuple[Tensor]:
    return (x.view(-1),)


def _written_result(function: Program, x: Tensor) -> Tensor:
    function(x)[0].mul_(2)
    return x + 1


def _written_operand(function: Program, x: Tensor) -> Tensor:
    y = x * 2
    z = function(y)[0]
    y.mul_(2)
    return z


@pytest.mark.parametrize("way", [captured_and_traced, compiled], ids=lambda way: way.__name__)
@pytest.mark.parametrize("program", [_written_result, _written_operand])
@pytest.mark.parametrize("function", [itself, flat_view], ids=["itself", "view"])
def test_writes_to_an_operand_that_is_a_result_are_kept(function: Program, program: Program, way: Any) -> None:
    """torch's graphs lose them: they take the result for a new tensor."""

    def call(x: Tensor) -> Tensor:
        return program(function, x)

    x, y = torch.ones(2, 2), torch.ones(2, 2)
    expected = call(x)
    assert torch.equal(way(call, make)[0](y), expected)
    assert torch.equal(x, y)


def test_a_fake_of_another_shape_is_found_where_a_setting_says_so() -> None:
    @leaf(lambda x: (x.new_empty(3),))
    def wrong(x: Tensor) -> tuple[Tensor]:
        return (x.sum(0),)

    @leaf(lambda x: (torch.empty_like(x),))
    def right(x: Tensor) -> tuple[Tensor]:
        return (x.sin(),)

    x = torch.ones(2, 2, requires_grad=True)
    with config.patch(leaf_function_validate_outputs=True):
        assert refimpl.compile(lambda x: right(x)[0], backend="aot_eager")(x).equal(x.sin())
        with pytest.raises(RuntimeError, match=r"Shape mismatch at output position 0(?s:.*)\[3\](?s:.*)\[2\]"):
            refimpl.compile(lambda x: wrong(x)[0], backend="eager")(x)


def test_a_gradient_that_no_argument_carries_is_found_where_a_setting_says_so() -> None:
    weight = torch.ones(2, requires_grad=True)

    @leaf(lambda x: (torch.empty_like(x),))
    def escaping(x: Tensor) -> tuple[Tensor]:
        return (x * weight,)

    x = torch.ones(2, requires_grad=True)
    with config.patch(leaf_function_check_escaped_gradients=True):
        found = refimpl.compile(lambda x, w: products(x, w)[0], backend="aot_eager")(x, weight)
        found.sum().backward()
        assert x.grad is not None
        with pytest.raises(RuntimeError, match=r"detected 1 tensor(?s:.*)\[2\] of torch.float32"):
            refimpl.compile(lambda x: escaping(x)[0], backend="aot_eager")(x).sum().backward()
