"""Examples of make_fx and of AOT autograd: graphs of aten operators, forward and backward."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from refimpl.tests.documentation.example import Page, equal, leaf, raising, same

_GUIDE = "user_guide/torch_compiler"
_AREA = "make_fx and AOT autograd"
tracing = Page(
    _AREA,
    "Non-strict Tracing Programming Model",
    f"{_GUIDE}/compile/programming_model.non_strict_tracing_model.html",
    "make_fx",
)
aot = Page(
    _AREA, "AOT Autograd - How to use and optimize?", "functorch/notebooks/aot_autograd_optimizations.html", "aot"
)
transformations = Page(
    _AREA, "Writing Graph Transformations on ATen IR", f"{_GUIDE}/torch.compiler_transformations.html", "make_fx"
)
fake = Page(_AREA, "Fake tensor", f"{_GUIDE}/torch.compiler_fake_tensor.html", "make_fx")
minifier = Page(_AREA, "Using the Minifier", "functorch/notebooks/minifier.html", "minifier")


def _make_fx(api: Any) -> Any:
    return api.fx.experimental.proxy_tensor.make_fx


def _names(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@tracing
def one_branch_is_traced(api: Any) -> None:
    """Only the branch of the example's size is in the graph, in both kinds of trace."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x**2 - 1 if x.shape[0] > 2 else x * 5

    for mode in ("real", "fake"):
        graph = _make_fx(api)(body, tracing_mode=mode)(torch.ones(3))
        equal(_names(graph), ["aten.pow.Tensor_Scalar", "aten.sub.Tensor"])
        equal(graph(torch.full((3,), 3.0)), torch.full((3,), 8.0))


@tracing
def a_global_is_a_constant(api: Any) -> None:
    """A tensor from outside keeps its value; as an argument it does not."""
    outside = {"value": torch.tensor(2)}
    x = torch.tensor([0, 1, 2])
    graph = _make_fx(api)(lambda y: y * outside["value"], tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    outside["value"] = torch.tensor(7)
    equal(graph(x), x * 2)
    graph = _make_fx(api)(lambda y, value: y * value, tracing_mode="fake")(x, torch.tensor(3))
    equal(graph(x, torch.tensor(5)), x * 5)


@tracing
def effects_happen_while_tracing(api: Any) -> None:
    """A list grows while the function is traced, and not when the graph runs."""
    seen: list[int] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x + 1

    graph = _make_fx(api)(body, tracing_mode="fake")(torch.zeros(2))
    graph(torch.zeros(2))
    equal(seen, [1])


@tracing
def a_list_shrinks_while_tracing(api: Any) -> None:
    """pop() of an argument's list happens once; the graph gives the value that it gave."""

    def body(items: list[torch.Tensor]) -> torch.Tensor:
        return items.pop() * 2

    items = [torch.tensor([1.0]), torch.tensor([4.0])]
    graph = _make_fx(api)(body, tracing_mode="fake")(items)
    given = [torch.tensor([1.0]), torch.tensor([4.0])]
    equal(graph(given), torch.tensor([8.0]))
    equal(len(given), 2)


@tracing
def an_address_is_refused(api: Any) -> None:
    """data_ptr of a fake tensor raises."""

    def body(x: torch.Tensor) -> torch.Tensor:
        ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_int32)).contents.value += 1
        return x

    with raising(Exception):
        _make_fx(api)(body, tracing_mode="fake")(torch.tensor([42], dtype=torch.int32))


@tracing
def a_number_is_a_constant(api: Any) -> None:
    """A float argument is part of the graph."""
    graph = _make_fx(api)(lambda x, y: x + y, tracing_mode="fake")(torch.zeros(2), 1.25)
    equal([node.args[1] for node in graph.graph.nodes if node.op == "call_function"], [1.25])


@tracing
def sizes_as_symbols(api: Any) -> None:
    """tracing_mode="symbolic": the graph runs with other sizes."""
    graph = _make_fx(api)(lambda x: x.view(-1) * x.shape[0], tracing_mode="symbolic")(torch.ones(3, 4))
    equal(graph(torch.ones(5, 2)), torch.full((10,), 5.0))


def _function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    x = a + b + c + d
    return x.cos().cos()


def _compilers() -> tuple[list[Any], Any]:
    graphs: list[Any] = []

    def compiler(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return graphs, compiler


@aot
def a_function_with_gradients(api: Any) -> None:
    """aot_function: a forward and a backward graph; the values and gradients are eager's."""
    graphs, compiler = _compilers()
    compiled = api._functorch.aot_autograd.aot_function(_function, fw_compiler=compiler, bw_compiler=compiler)
    same(_function, compiled, leaf(5), leaf(5), leaf(5), leaf(5))
    assert len(graphs) >= 2
    assert "aten.cos.default" in _names(graphs[0])
    assert "aten.sin.default" in _names(graphs[1]) or "aten.sin.default" in _names(graphs[0])


@aot
def less_is_saved(api: Any) -> None:
    """The min-cut partitioner saves fewer tensors than the default one for two cosines."""
    saved = []
    for partition in ("default_partition", "min_cut_rematerialization_partition"):
        graphs, compiler = _compilers()
        compiled = api._functorch.aot_autograd.aot_function(
            _function, fw_compiler=compiler, bw_compiler=compiler,
            partition_fn=getattr(api._functorch.partitioners, partition),
        )  # fmt: skip
        compiled(leaf(5), leaf(5), leaf(5), leaf(5)).sum().backward()
        saved.append(len(graphs[0].graph.output_node().args[0]) - 1)
    assert saved[1] <= saved[0], saved
    equal(saved[1], 1)


@aot
def a_decomposed_function(api: Any) -> None:
    """decompositions: softmax in smaller operators."""
    graphs, compiler = _compilers()
    compiled = api._functorch.aot_autograd.aot_function(
        lambda x: torch.softmax(x, 0), fw_compiler=compiler, bw_compiler=compiler,
        decompositions={torch.ops.aten._softmax.default: _softmax},
    )  # fmt: skip
    x = leaf(4)
    equal(compiled(x), torch.softmax(x, 0))
    assert "aten._softmax.default" not in _names(graphs[0])


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    exponential = torch.exp(x - torch.amax(x, [dim], keepdim=True))
    return exponential / exponential.sum([dim], keepdim=True)


@aot
def a_module(api: Any) -> None:
    """aot_module: the parameters are inputs of the graph."""
    graphs, compiler = _compilers()
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    compiled = api._functorch.aot_autograd.aot_module(module, fw_compiler=compiler, bw_compiler=compiler)
    same(module, compiled, leaf(2, 3))
    equal(sum(node.op == "placeholder" for node in graphs[0].graph.nodes), 3)


@aot
def a_graph_that_is_compiled_at_once(api: Any) -> None:
    """aot_module_simplified, as a backend calls it."""
    _, compiler = _compilers()
    aot_module_simplified = api._functorch.aot_autograd.aot_module_simplified

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return aot_module_simplified(graph, example_inputs, fw_compiler=compiler)

    body = lambda x, w: (x @ w).relu()  # noqa: E731
    same(body, api.compile(body, backend=backend), leaf(2, 3), leaf(3, 2))


@aot
def a_write_to_an_argument(api: Any) -> None:
    """The graph is functional; the argument has its new value after the call."""
    graphs, compiler = _compilers()

    def body(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    compiled = api._functorch.aot_autograd.aot_function(body, fw_compiler=compiler, bw_compiler=compiler)
    same(body, compiled, torch.randn(3))
    assert not any(name.endswith("_.Tensor") for name in _names(graphs[0]))


@transformations
def operators_are_exchanged(api: Any) -> None:
    """A pass over the nodes of a graph: every sum becomes a product."""
    graph = _make_fx(api)(lambda x, y: (x + y) * x)(torch.ones(2), torch.ones(2))
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor:
            node.target = torch.ops.aten.mul.Tensor
    graph.recompile()
    equal(graph(torch.full((2,), 3.0), torch.full((2,), 4.0)), torch.full((2,), 36.0))


@transformations
def a_transformer(api: Any) -> None:
    """torch.fx.Transformer over a graph."""

    class Doubles(torch.fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            result = super().call_function(target, args, kwargs)
            return result * 2 if target is torch.ops.aten.sin.default else result

    graph = _make_fx(api)(lambda x: x.sin() + 1)(torch.ones(2))
    equal(Doubles(graph).transform()(torch.ones(2)), torch.ones(2).sin() * 2 + 1)


@transformations
def patterns_are_replaced(api: Any) -> None:
    """subgraph_rewriter: a pattern of two operators becomes one."""
    graph = _make_fx(api)(lambda x, y: (x + y).relu() - 1)(torch.ones(2), torch.ones(2))

    def pattern(x: Any, y: Any) -> Any:
        return torch.ops.aten.relu.default(torch.ops.aten.add.Tensor(x, y))

    def replacement(x: Any, y: Any) -> Any:
        return torch.ops.aten.maximum.default(x, y)

    equal(len(torch.fx.replace_pattern(graph, pattern, replacement)), 1)
    equal(graph(torch.ones(2), torch.full((2,), 5.0)), torch.full((2,), 4.0))


@fake
def a_trace_under_a_fake_mode(api: Any) -> None:
    """Fake tensors as inputs: a graph without data."""
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.ones(2, 3))
        graph = _make_fx(api)(lambda x: x @ x.t())(x)
    equal(graph(torch.ones(2, 3)), torch.full((2, 2), 3.0))


@minifier
def a_graph_is_made_small(api: Any) -> None:
    """minifier: of a graph of which one operator fails, that operator is left."""

    def failing(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        return any(node.target is torch.ops.aten.tan.default for node in graph.graph.nodes)

    graph = _make_fx(api)(lambda x, y: ((x.sin() + y).tan() * 2).exp())(torch.ones(2), torch.ones(2))
    inputs = [torch.ones(2), torch.ones(2)]
    small, _ = api._functorch.fx_minifier.minifier(graph, inputs, failing, dump_state=lambda *_: None)
    equal(_names(small), ["aten.tan.default"])
