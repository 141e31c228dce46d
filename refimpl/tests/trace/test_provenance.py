"""Where nodes come from: stack traces, the op that was decomposed, what a graph that is traced again says, module inputs."""

from __future__ import annotations

import linecache
from typing import Any, Literal

import pytest
import torch
from torch.fx import config as fx_config
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl
from refimpl.trace.metadata import StackTraceState

aten = torch.ops.aten
TABLE = {
    aten.silu.default: lambda x: x * torch.sigmoid(x),
    aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp()),
}
KEPT_FIELDS = ("nn_module_stack", "torch_fn", "stack_trace", "original_aten", "seq_nr", "custom")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return _activation(y)


def _activation(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x).max(dim=0).values


def _calls(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def _with_module_stack(module: torch.nn.Module, x: torch.Tensor) -> torch.fx.GraphModule:
    def call(x: torch.Tensor) -> torch.Tensor:
        return module(x)

    setattr(call, "_orig_mod", module)
    return refimpl.make_fx(call, record_module_stack=True)(x)


def _again(make: Any, graph_module: torch.fx.GraphModule, x: torch.Tensor, **options: Any) -> torch.fx.GraphModule:
    """The graph traced again, node by node."""
    with fx_traceback.preserve_node_meta():
        return make(torch.fx.Interpreter(graph_module).run, **options)(x)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_stack_traces_show_the_forwards_as_torch_does(mode: Literal["real", "fake", "symbolic"]) -> None:
    """PX-37"""
    block, x = Block(), torch.randn(2, 3)
    options: dict[str, Any] = {"tracing_mode": mode, "record_stack_traces": True, "_allow_non_fake_inputs": True}
    ours = refimpl.make_fx(lambda x: block(x), **options)(x)
    theirs = torch_make_fx(lambda x: block(x), **options)(x)
    traces = [node.stack_trace for node in _calls(ours)]
    assert traces == [node.stack_trace for node in _calls(theirs)]
    assert traces[0] is not None
    assert traces[0].splitlines()[1].strip() == "y = self.linear(x)"


def test_a_program_without_modules_shows_its_own_lines_and_no_others() -> None:
    graph_module = refimpl.make_fx(lambda x: _activation(x), record_stack_traces=True)(torch.randn(2, 3))
    for node in _calls(graph_module):
        trace = node.stack_trace
        assert trace is not None
        assert [line.split(", in ")[1] for line in trace.splitlines() if line.strip().startswith("File ")] == [
            "<lambda>",
            "_activation",
        ]
        assert trace.count(__file__) == 2
        assert trace.splitlines()[-1].strip() == "return torch.nn.functional.silu(x).max(dim=0).values"


def test_inputs_and_the_output_have_no_stack_trace_and_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Block()
    x = torch.randn(2, 3)
    for node in refimpl.make_fx(program, record_stack_traces=True)(x).graph.nodes:
        assert (node.stack_trace is None) == (node.op in ("placeholder", "output"))
    assert {node.stack_trace for node in refimpl.make_fx(program)(x).graph.nodes} == {None}
    if not hasattr(fx_config, "do_not_emit_stack_traces"):  # torch 2.11 has no such flag
        return
    monkeypatch.setattr(fx_config, "do_not_emit_stack_traces", True)
    assert {node.stack_trace for node in refimpl.make_fx(program, record_stack_traces=True)(x).graph.nodes} == {None}


def test_no_source_is_read_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    is_running = [False]
    getline = linecache.getline
    monkeypatch.setattr(linecache, "getline", lambda *args: read.append(is_running[0]) or getline(*args))

    def program(x: torch.Tensor) -> torch.Tensor:
        is_running[0] = True
        y = x.sin().cos()
        is_running[0] = False
        return y

    graph_module = refimpl.make_fx(program, record_stack_traces=True)(torch.ones(2))
    assert "x.sin().cos()" in str(_calls(graph_module)[0].stack_trace)
    assert read
    assert not any(read)


def test_a_trace_inside_a_trace_shows_the_lines_of_its_own_program() -> None:
    inner: list[torch.fx.GraphModule] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner.append(refimpl.make_fx(_activation, record_stack_traces=True)(torch.ones(2, 3)))
        return x

    refimpl.make_fx(outer)(torch.ones(2))
    assert [str(node.stack_trace).count("File ") for node in _calls(inner[0])] == [1] * len(_calls(inner[0]))


def test_a_stack_trace_that_a_node_has_is_left_alone() -> None:
    node = torch.fx.Graph().placeholder("x")
    node.meta["stack_trace"] = "its own"
    state = StackTraceState(_calls.__code__, 1)
    state.write(node)
    state.finish()
    assert node.meta["stack_trace"] == "its own"


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_nodes_of_a_decomposition_name_the_outermost_op(mode: Literal["real", "fake", "symbolic"]) -> None:
    """PX-26"""
    x = torch.randn(2, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x).cos()

    with fx_traceback.preserve_node_meta():
        graph_module = refimpl.make_fx(program, decomposition_table=TABLE, tracing_mode=mode)(x)
    origins = {node.target: str(node.meta["original_aten"]) for node in _calls(graph_module)}
    assert origins.pop(aten.cos.default) == "aten.cos.default"
    assert set(origins) == {
        aten.neg.default,
        aten.exp.default,
        aten.add.Tensor,
        aten.reciprocal.default,
        aten.mul.Tensor,
    }
    assert set(origins.values()) == {"aten.silu.default"}
    assert all("original_aten" not in node.meta for node in refimpl.make_fx(program)(x).graph.nodes)


def test_an_op_after_a_decomposition_that_failed_names_itself() -> None:
    """PX-26, PX-50"""

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    def program(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ZeroDivisionError):
            torch.nn.functional.silu(x)
        return x.cos()

    with fx_traceback.preserve_node_meta():
        graph_module = refimpl.make_fx(program, decomposition_table={aten.silu.default: failing})(torch.ones(2))
    assert [str(node.meta["original_aten"]) for node in _calls(graph_module)] == ["aten.cos.default"]


def test_a_graph_that_is_traced_again_hands_on_what_its_nodes_say_as_torch_does() -> None:
    """PX-26, XC-02"""
    x = torch.randn(2, 3)
    first = _with_module_stack(Block(), x)
    ours = _again(refimpl.make_fx, first, x, decomposition_table=TABLE)
    theirs = _again(torch_make_fx, first, x, decomposition_table=TABLE)

    def described(graph_module: torch.fx.GraphModule) -> list[tuple[str, list[str]]]:
        nodes = _calls(graph_module)
        start = nodes[0].meta["seq_nr"]
        return [
            (
                node.name,
                [str(node.meta["seq_nr"] - start if f == "seq_nr" else node.meta.get(f)) for f in KEPT_FIELDS],
            )
            for node in nodes
        ]

    def plain(rows: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
        return [(name, [value.replace("OrderedDict", "") for value in values[1:]]) for name, values in rows]

    assert plain(described(ours)) == plain(described(theirs))
    for ours_node, theirs_node in zip(_calls(ours), _calls(theirs), strict=True):
        assert list(ours_node.meta["nn_module_stack"].items()) == list(theirs_node.meta["nn_module_stack"].items())
        assert [source.name for source in ours_node.meta["from_node"]] == [
            source.name for source in theirs_node.meta["from_node"]
        ]


def test_what_the_interpreted_node_says_wins_over_what_is_recorded() -> None:
    """PX-37"""
    x = torch.randn(2, 3)
    first = _with_module_stack(Block(), x)
    for node in _calls(first):
        node.meta["stack_trace"] = f"of {node.name}"
    again = _again(refimpl.make_fx, first, x, record_stack_traces=True)
    assert {node.meta["stack_trace"] for node in _calls(again)} <= {f"of {node.name}" for node in _calls(first)}


def test_annotations_of_the_program_are_handed_on() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with fx_traceback.annotate({"stage": 1}):
            y = x.sin()
        return y.cos()

    with fx_traceback.preserve_node_meta():
        graph_module = refimpl.make_fx(program)(torch.ones(2))
    assert [node.meta.get("custom") for node in _calls(graph_module)] == [{"stage": 1}, None]
    assert all("custom" not in node.meta for node in _calls(refimpl.make_fx(program)(torch.ones(2))))


def test_what_is_done_with_a_module_among_the_inputs_is_done_with_the_one_the_graph_is_given() -> None:
    """PX-39"""
    x = torch.randn(2, 3)

    def program(module: Any, x: torch.Tensor) -> Any:
        return module(x.sin()) + x[0], module.linear.weight.sum() + x.sum(), {"plain": x * 2}

    graph_module = refimpl.make_fx(program, proxy_module_inputs=True)(Block(), x)
    assert [(node.op, node.target) for node in graph_module.graph.nodes if node.op == "call_method"] == [
        ("call_method", "__call__"),
        ("call_method", "sum"),
    ]
    other = Block()
    torch.testing.assert_close(graph_module(other, x + 1), program(other, x + 1))


def test_a_module_among_the_inputs_is_itself_by_default() -> None:
    x = torch.randn(2, 3)
    block = Block()
    graph_module = refimpl.make_fx(lambda module, x: module(x))(block, x)
    assert aten.addmm.default in [node.target for node in _calls(graph_module)]
    torch.testing.assert_close(graph_module(Block(), x), block(x))
