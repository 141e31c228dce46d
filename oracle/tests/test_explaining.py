"""`explain`: each fact of the explanation, on programs for which it is known; and no fact without a cause."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import pytest
import torch

from oracle import explaining
from oracle.explaining import explain, explained
from oracle.explanation import Break, Capture, Explanation
from oracle.hygiene import snapshot
from oracle.program import Call, Program
from oracle.program.build import instantiate

PLAIN = """
import torch
def program(x):
    return torch.sin(x) + 1
def inputs(call):
    return (torch.ones(3),), {}
"""
BUSY = """
import torch
SCALE = 2
def inner(x):
    print(end="")
    return x.cos()
def program(x, n):
    y = inner(torch.sin(x))
    x.mul_(SCALE)
    return y.add(n).relu(), x.view(-1), x
def inputs(call):
    return (torch.ones(3 + call), 1), {}
"""
MODULE = """
import torch
class program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
    def forward(self, x):
        return self.norm(self.layer(x))
def inputs(call):
    return (torch.randn(5, 4),), {}
"""
RAISING = PLAIN.replace("return torch.sin(x) + 1", "return x.view(100)")


@functools.cache
def _explained(source: str, calls: int = 2, **fields: Any) -> Explanation:
    program = Program(name="demo", source=source, calls=(Call(),) * calls, **fields)
    return explain(lambda: instantiate(program))


def test_a_plain_function_is_one_graph_in_both_systems() -> None:
    found = _explained(PLAIN)
    assert found.dynamo.graphs == found.refimpl.graphs == (("torch.sin", "operator.add"),)
    assert found.differences() == []
    for capture in (found.dynamo, found.refimpl):
        assert (capture.breaks, capture.recompiles, capture.error) == ((), (), "")
    assert (found.mutations, found.aliases) == ((), ())
    assert "graph breaks\n  none" in explained(found)


def test_breaks_recompiles_and_guards_are_told_with_the_programs_own_names() -> None:
    found = _explained(BUSY)
    assert found.dynamo.breaks[0].where == '<program demo>:5: print(end="")'
    assert "print" in found.dynamo.breaks[0].reason
    assert {each.where for each in found.refimpl.breaks} == {each.where for each in found.dynamo.breaks}
    # The caller is captured twice, up to the call; the function that breaks is captured once before its line.
    assert len(found.dynamo.breaks) == len(found.refimpl.breaks) == 1
    assert any("expected 3, actual 4" in reason for reason in found.dynamo.recompiles)
    assert len(found.refimpl.recompiles) >= 1
    assert "SCALE == 2" in found.dynamo.guards
    assert "n == 1" in found.dynamo.guards
    assert "x: a Tensor, float32 on cpu, shape (3,), stride (1,), requires_grad=False" in found.dynamo.guards
    assert not any("L['" in guard or "___check" in guard for guard in found.dynamo.guards)


def test_mutated_arguments_and_outputs_that_share_memory() -> None:
    found = _explained(BUSY)
    assert found.mutations == ("call 0: args[0]", "call 1: args[0]")
    assert "call 0: output[1] shares memory with args[0], output[2]" in found.aliases
    assert "call 0: output[2] is args[0]" in found.aliases


def test_a_modules_buffers_and_bytes() -> None:
    found = _explained(MODULE, is_module=True)
    assert found.mutations[:2] == ("call 0: module.norm.running_mean", "call 0: module.norm.running_var")
    assert found.memory is not None
    assert (found.memory.parameters, found.memory.inputs, found.memory.outputs) == (4 * (32 + 8 + 16), 80, 160)
    assert found.memory.buffers == 4 * 16 + 8
    assert found.memory.intermediates == 2 * 160, "the layer's result and the norm's"
    assert any(guard.startswith("self._modules['layer']") and "Parameter" in guard for guard in found.dynamo.guards)


def test_results_of_a_graph_are_alive_from_making_to_last_use_and_views_cost_nothing() -> None:
    graph = torch.fx.Graph()
    tensors = [torch.empty(10), torch.empty(20), torch.empty(40), torch.empty(5)]
    x = graph.placeholder("x")
    a = graph.call_function(torch.sin, (x,))
    view = graph.call_method("view", (a, -1))
    b = graph.call_function(torch.cos, (view,))
    c = graph.call_function(torch.tan, (b,))
    graph.output(c)
    for node, value in zip((x, a, view, b, c), (*tensors[:2], tensors[1].view(-1), *tensors[2:]), strict=True):
        node.meta["example_value"] = value
    assert explaining._alive(torch.fx.GraphModule({}, graph)) == 4 * (20 + 40)


def test_a_program_that_raises_is_explained_up_to_there() -> None:
    found = _explained(RAISING)
    assert "call 0 raised" in found.dynamo.error
    assert "Dynamo did not reach the end: call 0 raised" in explained(found)


def test_the_table_shows_what_differs_and_only_that_as_different() -> None:
    def capture(name: str, *operators: str, where: str) -> Capture:
        return Capture(
            name=name, graphs=(operators,), breaks=(Break(reason="r", where=where),), guards=("g",) * len(name)
        )

    found = Explanation(
        program="p", calls=1, dynamo=capture("Dynamo", "a", "b", where="f.py:1"),
        refimpl=capture("refimpl", "a", "c", "c", where="f.py:2"), mutations=(), aliases=(), memory=None, tools=(),
    )  # fmt: skip
    assert found.differences() == [("operators in them", "2", "3"), ("b", "1", "0"), ("c", "0", "2")]
    lines = explained(found).splitlines()
    assert sum(line.endswith("differs") for line in lines) == 3
    assert "  graph break of Dynamo alone: f.py:1  (r)" in lines
    assert "  graph break of refimpl alone: f.py:2  (r)" in lines


def test_nothing_is_left_changed() -> None:
    before, limit = snapshot(), torch._dynamo.config.recompile_limit
    _explained.__wrapped__(PLAIN)
    assert snapshot() == before
    assert torch._dynamo.config.recompile_limit == limit


def test_other_tools_are_named_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert len(list(explaining._tools())) == 1
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert [text.split(":")[0] for text in explaining._tools()][1] == "depyf"
    assert "tlparse" in list(explaining._tools())[2]
