"""Contracts of capture's helpers (rows UT of docs/contracts.md) about nodes: what they give on tensors without data, what they
give for real, which of them runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

import refimpl
from refimpl._torch import FakeTensor, FakeTensorMode, TorchValueRangeError, UnsupportedFakeTensorException
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.public import fake_values as nodes
from refimpl.capture.public.errors import TorchRuntimeError, Unsupported, UserError, UserErrorType
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor


@dataclass
class Graph:
    """Nodes made by hand, with what they are captured with."""

    nn_modules: dict[str, Any] = field(default_factory=dict)
    fake_mode: FakeTensorMode = field(
        default_factory=lambda: symbolic_fake_mode(ShapeEnv(assume_static_by_default=True))
    )
    real_value_cache: dict[fx.Node, Any] = field(default_factory=dict)
    graph: fx.Graph = field(default_factory=fx.Graph)

    def input(self, name: str, real: Tensor) -> fx.Node:
        node = self.graph.placeholder(name)
        nodes.set_example_value(node, nodes.to_fake_tensor(real, self.fake_mode))
        node.meta["grapharg"] = SimpleNamespace(example=real)
        return node

    def call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        return self.graph.call_function(function, args)


@pytest.fixture
def graph() -> Graph:
    return Graph()


# --------------------------------------------------------------------------------------------------------- fake values


def test_a_number_that_only_a_run_knows_is_bound_on_the_node_that_makes_it(backend: Backend) -> None:
    """UT-26"""

    def program(x: Tensor) -> Tensor:
        return x.nonzero().float() * x.sum().item()

    refimpl.optimize_assert(backend)(program)(torch.ones(3))
    bound = {
        str(node.target): [(str(symbol), [str(step) for step in path]) for symbol, path in bindings.items()]
        for node in backend.graphs[0].graph.nodes
        if (bindings := node.meta.get("unbacked_bindings"))
    }
    assert list(bound) == ["nonzero", "item"]
    ((symbol, path),) = bound["nonzero"]
    assert path == [".size()", "[0]"]
    assert bound["item"] != []
    assert bound["item"][0][1] == []
    assert bound["item"][0][0] != symbol


def test_a_number_that_is_nowhere_in_the_result_is_an_error(graph: Graph) -> None:
    """UT-26"""
    env: Any = graph.fake_mode.shape_env
    node = graph.graph.placeholder("x")
    env.create_unbacked_symint()
    with pytest.raises(RuntimeError, match="are not in its result"):
        nodes.set_example_value(node, graph.fake_mode.from_tensor(torch.ones(2)))


def test_tensors_are_told_apart_by_fakes_and_without_one_it_is_a_break(graph: Graph) -> None:
    """UT-28"""
    x = graph.input("x", torch.ones(2))
    assert isinstance(nodes._get_fake_tensor(x), FakeTensor)
    with pytest.raises(GraphBreak, match="is`, which needs tensors without data"):
        nodes._get_fake_tensor(graph.call(torch.sin, x))


def test_what_fakes_have_no_kernel_for_is_a_break(graph: Graph) -> None:
    """UT-28, UT-38"""
    library = torch.library.Library("refimpl_nodes_test", "DEF")
    library.define("kernelless(Tensor x) -> Tensor")
    library.impl("kernelless", torch.clone, "CPU")
    kernelless = torch.ops.refimpl_nodes_test.kernelless
    unsupported = _raising(UnsupportedFakeTensorException("meta converter nyi"))
    with pytest.raises(GraphBreak, match="meta converter nyi"):
        nodes.wrap_fake_exception(lambda: unsupported(torch.ones(2)))
    with pytest.raises(GraphBreak, match="RC0005"):
        nodes.get_fake_value(graph.call(kernelless, graph.input("x", torch.ones(2))), graph)
    with pytest.raises(KeyError):
        nodes.wrap_fake_exception(lambda: {}["other errors are left alone"])
    with pytest.raises(Unsupported, match="RC0005"):
        refimpl.compile(lambda x: kernelless(x), fullgraph=True)(torch.ones(2))
    assert refimpl.compile(lambda x: kernelless(x) + 1)(torch.ones(2)).tolist() == [2, 2]


def test_a_module_is_copied_with_fake_parameters(graph: Graph) -> None:
    """UT-28"""
    shared = torch.nn.Linear(2, 2)
    module = torch.nn.Sequential(shared, torch.nn.BatchNorm1d(2), shared)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    copied = nodes.deepcopy_to_fake_tensor(module, graph.fake_mode)
    assert all(type(value) is FakeTensor for value in [*copied.parameters(), *copied.buffers()])
    assert copied[0] is copied[2], "as it was shared"
    with graph.fake_mode:
        copied(graph.fake_mode.from_tensor(torch.ones(3, 2)))
    assert all(type(value) is torch.nn.Parameter for value in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_value_of_another_fake_mode_is_refused(graph: Graph) -> None:
    """UT-37, XC-01"""
    x = graph.input("x", torch.ones(2))
    mine = nodes.extract_fake_example_value(x)
    assert nodes.ensure_graph_fake(mine, graph) is mine
    foreign = FakeTensorMode().from_tensor(torch.ones(2))
    with pytest.raises(AssertionError, match=r"belongs to fake mode(?s:.*)to_fake_tensor"):
        nodes.ensure_graph_fake(foreign, graph)
    y = graph.graph.placeholder("y")
    y.meta["example_value"] = foreign
    with pytest.raises(AssertionError, match="belongs to fake mode"):
        nodes.get_fake_values_from_nodes(graph, (x, y), False)
    assert nodes.get_fake_values_from_nodes(graph, (x, [y], 3), True) == (mine, [foreign], 3)
    bare = graph.graph.placeholder("bare")
    assert nodes.extract_fake_example_value(bare, required=False) is None
    with pytest.raises(GraphBreak, match="node bare"):
        nodes.extract_fake_example_value(bare)


def test_the_fake_value_of_a_node_is_made_once(graph: Graph) -> None:
    """UT-38"""
    x = graph.input("x", torch.ones(2, 3))
    calls: list[int] = []

    def counted(t: Tensor) -> Tensor:
        calls.append(1)
        return t.t()

    node = graph.call(torch.sin, graph.call(counted, x))
    value = nodes.get_fake_value(node, graph)
    assert value.shape == (3, 2)
    nodes.set_example_value(node, value)
    assert nodes.get_fake_value(node, graph) is value
    assert calls == [1]


class Writing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        seen: Any = self.seen
        seen += x.sum()
        return x * seen


def test_modules_run_as_fake_copies_and_lazy_ones_are_given_parameters(graph: Graph) -> None:
    """UT-38"""
    writing, lazy = Writing(), torch.nn.LazyLinear(4)
    graph.nn_modules.update(writing=writing, lazy=lazy)
    x = graph.input("x", torch.ones(2, 3))
    assert nodes.get_fake_value(graph.graph.call_module("writing", (x,)), graph).shape == (2, 3)
    attribute = graph.graph.get_attr("writing", type_expr=None)
    called = graph.graph.call_method("forward", (attribute, x))
    assert nodes.get_fake_value(called, graph).shape == (2, 3)
    assert writing.get_buffer("seen").tolist() == [0]
    assert nodes.get_fake_value(graph.graph.call_module("lazy", (x,)), graph).shape == (2, 4)
    assert lazy.weight.shape == (4, 3)


def _raising(error: Exception) -> Callable[[Tensor], Tensor]:
    def raises(x: Tensor) -> Tensor:
        raise error

    return raises


def test_errors_on_fakes_are_breaks_or_errors_by_their_cause(graph: Graph) -> None:
    """UT-38, XC-09"""
    x = graph.input("x", torch.ones(2, 2))

    def fails(function: Callable[..., Any], *args: Any) -> BaseException:
        with pytest.raises((RuntimeError, GraphBreak)) as caught:
            nodes.get_fake_value(graph.call(function, x, *args), graph)
        return caught.value

    ranges = fails(_raising(TorchValueRangeError("Invalid ranges [5:3]")))
    assert isinstance(ranges, UserError)
    assert ranges.error_type is UserErrorType.CONSTRAINT_VIOLATION
    assert "Invalid ranges [5:3]" in str(ranges)
    made = graph.call(lambda t: t.sum().item(), x)
    number = nodes.get_fake_value(made, graph)
    nodes.set_example_value(made, number)
    guarded = fails(lambda t: t + 1 if number > 3 else t)
    assert isinstance(guarded, UserError)
    assert guarded.error_type is UserErrorType.ANTI_PATTERN
    arguments = fails(torch.sin, "no argument")
    assert isinstance(arguments, GraphBreak)
    assert arguments.kind.name == "wrong_arguments"
    assert isinstance(fails(torch.mm, graph.input("y", torch.ones(7, 7))), TorchRuntimeError)
    assert isinstance(fails(_raising(KeyError("k"))), TorchRuntimeError)


def test_the_same_errors_of_captured_programs() -> None:
    """UT-38, XC-09"""

    def branching(x: Tensor) -> Tensor:
        return x + 1 if x.sum().item() > 3 else x

    def contradicting(x: Tensor) -> Tensor:
        number = x.sum().item()
        torch._check(number >= 0)
        torch._check(number <= -1)
        return x

    def wrong(x: Tensor) -> Tensor:
        return torch.sin(x, "no argument")  # pyright: ignore[reportCallIssue]

    x = torch.ones(2, 2, dtype=torch.int64)
    with pytest.raises(UserError, match=r"RC0008(?s:.*)torch\._check") as caught:
        refimpl.compile(branching, fullgraph=True)(x)
    assert caught.value.error_type is UserErrorType.ANTI_PATTERN
    with pytest.raises(TorchRuntimeError, match="_check raises RuntimeError"):
        refimpl.compile(contradicting, fullgraph=True)(x)
    with pytest.raises(Unsupported, match="RC0016"):
        refimpl.compile(wrong, fullgraph=True)(x)
    with pytest.raises(TypeError, match="argument"):
        refimpl.compile(wrong)(x)
    with config.patch(capture_scalar_outputs=True):
        assert refimpl.compile(branching)(x).tolist() == [[2, 2], [2, 2]]


def test_what_a_program_checks_is_known_from_there_on(backend: Backend) -> None:
    """UT-38, XC-16"""

    def program(x: Tensor) -> Tensor:
        size: Any = x.sum().item()
        torch._check_is_size(size)
        torch._check(size <= 4, lambda: "too many")
        return torch.zeros(size) if size >= 0 else x

    compiled = refimpl.optimize_assert(backend)(program)
    assert compiled(torch.ones(3, dtype=torch.int64)).shape == (3,)
    assert compiled(torch.ones(3, dtype=torch.int64) * 0).shape == (0,)
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(torch.full((3,), 2))
    assert backend.n == 1


def test_a_capture_and_what_traces_its_graph_have_one_symbol_for_a_size() -> None:
    """UT-53, XC-01, XC-17"""
    symbols: list[list[str]] = []
    values: list[Any] = []

    def tracing(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        values.extend(node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder")
        mode = values[0].fake_mode
        fakes = [nodes.to_fake_tensor(given, mode) for given in inputs]
        traced = refimpl.make_fx(module)(*fakes)
        for graph in (module.graph, traced.graph):
            named = (node.meta.get("val", node.meta.get("example_value")) for node in graph.nodes)
            symbols.append([str(value.shape[0]) for value in named if isinstance(value, Tensor)])
        return module.forward

    compiled = refimpl.compile(lambda x, y: (x.sin() + y, x.shape[0]), backend=tracing, dynamic=True)
    assert compiled(torch.ones(4, 3), torch.ones(4, 3))[1] == 4
    captured, traced = symbols
    assert set(captured) == set(traced)
    assert len(set(captured)) == 1
    assert not captured[0].isdigit()


def test_a_size_is_one_symbol_in_capture_and_in_the_graphs_of_aot() -> None:
    """UT-53, XC-01"""
    seen: list[str] = []

    def keep(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        seen.extend(str(value.shape[0]) for value in values if isinstance(value, Tensor) and value.dim() == 2)
        return module.forward

    def backend(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        example = next(iter(module.graph.nodes)).meta["example_value"]
        seen.append(str(example.shape[0]) if isinstance(example, Tensor) else str(example))
        return refimpl.aot_module_simplified(module, inputs, fw_compiler=keep)

    refimpl.compile(lambda x: x.sin().sum(0), backend=backend, dynamic=True)(torch.ones(4, 3))
    assert len(seen) >= 2
    assert len(set(seen)) == 1
    assert not seen[0].isdigit()


# ------------------------------------------------------------------------------------------------------- running nodes


def test_which_node_runs_is_known_to_its_thread(graph: Graph) -> None:
    """UT-39"""
    first, second = graph.graph.placeholder("a"), graph.graph.placeholder("b")
    elsewhere: list[Any] = []
    with nodes.set_current_node(first):
        with contextlib.suppress(KeyError), nodes.set_current_node(second):
            assert nodes.get_current_node() is second
            raise KeyError
        assert nodes.get_current_node() is first
        thread = threading.Thread(target=lambda: elsewhere.append(nodes.get_current_node()))
        thread.start()
        thread.join()
    assert elsewhere == [None]
    assert nodes.get_current_node() is None
    asked = graph.call(nodes.get_current_node)
    assert nodes.run_node(graph, asked, (), {}, None) is asked


@pytest.fixture
def linear(graph: Graph) -> torch.nn.Linear:
    graph.nn_modules["linear"] = torch.nn.Linear(2, 2)
    return graph.nn_modules["linear"]


def test_every_kind_of_node_is_run(graph: Graph, linear: torch.nn.Linear) -> None:
    """UT-40"""
    x = torch.ones(1, 2)
    given = graph.input("x", x)
    run = nodes.run_node
    assert torch.equal(run(graph, graph.call(torch.add, given), (x, x), {"alpha": 2}, None), x * 3)
    assert torch.equal(run(graph, graph.graph.call_method("mul", (given, 2)), (x, 2), {}, None), x * 2)
    assert torch.equal(run(graph, graph.graph.call_module("linear", (given,)), (x,), {}, linear), linear(x))
    assert run(graph, graph.graph.get_attr("linear"), (), {}, None) is linear
    assert run(graph, given, (), {}, None) is given.meta["example_value"]
    with pytest.raises(AssertionError, match="output"):
        run(graph, graph.graph.output(given), (), {}, None)
    with pytest.raises(AssertionError, match="is no module"):
        run(graph, graph.graph.call_module("linear", (given,)), (x,), {}, None)


def test_a_node_that_raises_is_named_with_its_arguments(graph: Graph) -> None:
    """UT-40"""

    def raises(number: int) -> None:
        raise KeyError("innermost")

    node = graph.call(raises, 3)
    with pytest.raises(
        RuntimeError, match=r"Failed running call_function (?s:.*)raises(?s:.*)\(3,\)(?s:.*)innermost"
    ) as caught:
        nodes.run_node(graph, node, (3,), {}, None)
    assert isinstance(caught.value.__cause__, KeyError)
    frames: list[str] = []
    traceback = caught.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "raises" in frames, "the traceback leads to where it was raised"
    with pytest.raises(GraphBreak, match="RC0005"):
        nodes.run_node(graph, graph.call(_raising(NotImplementedError())), (1,), {}, None)


def test_a_node_is_evaluated_with_what_it_needs_and_nothing_of_the_program_changes(graph: Graph) -> None:
    """UT-41"""
    norm, writing = torch.nn.BatchNorm1d(3), Writing()
    graph.nn_modules.update(norm=norm, writing=writing)
    real = torch.rand(4, 3)
    x = graph.input("x", real)
    calls: list[int] = []

    def counted(t: Tensor) -> Tensor:
        calls.append(1)
        return t * 2

    doubled = graph.call(counted, x)
    normed = graph.graph.call_module("norm", (doubled,))
    written = graph.graph.call_method("forward", (graph.graph.get_attr("writing"), doubled))
    result = nodes.get_real_value(graph.call(torch.add, normed, written), graph)
    expected = torch.nn.BatchNorm1d(3)(real * 2) + real * 2 * (real * 2).sum()
    torch.testing.assert_close(result, expected)
    assert calls == [1], "what two nodes need is run once"
    assert graph.real_value_cache[doubled].shape == (4, 3)
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert writing.get_buffer("seen").tolist() == [0]
    with pytest.raises(TorchRuntimeError, match="Failed running"):
        nodes.get_real_value(graph.call(torch.mm, x, x), graph)
    with pytest.raises(AssertionError, match="no example"):
        nodes.get_real_value(graph.graph.placeholder("bare"), graph)
