"""Calls that a segment serves: how little Python they run, and that the guards of many tensors are those of few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import refimpl
from refimpl.capture.compile import with_options
from refimpl.tests.capture.capturing import Recorder, options
from refimpl.tests.frames import own_frames

FEW, MANY = 1, 25  # layers; the tensors of a few are checked one by one


class Layers(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def names(found: list[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in found]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_hit_enters_the_same_few_functions_however_many_parameters_there_are(count: int) -> None:
    compiled, x = with_options(Layers(count), options(Recorder())), torch.randn(2, 3)
    compiled(x)
    compiled(x)  # it makes what binds arguments
    found = names(own_frames(lambda: compiled(x)))
    assert found == ["call", "__call__", "call", "is_fx_tracing", "slots", "check", "_begun", "_computed"]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_hit_of_aot_graphs_enters_few_functions(count: int) -> None:
    compiled, x = refimpl.compile(Layers(count), backend="aot_eager"), torch.randn(2, 3)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        found = own_frames(lambda: compiled(x))
    assert len(found) <= 18, found


def test_the_check_of_many_tensors_makes_one_tuple_and_one_loop_for_each_fact() -> None:
    sources: list[str] = []
    for count in (MANY, MANY + 1):
        chosen = options(Recorder())
        with_options(Layers(count), chosen)(torch.randn(2, 3))
        (code,) = chosen.functions.values()
        (segment,) = code.cache.segments()
        sources.append(segment.check_contents.source)  # type: ignore[attr-defined]
    assert [source.count(" = (v") for source in sources] == [1, 1]
    assert [source.count("map(") for source in sources] == [7, 7]
    lines = [len(source.splitlines()) for source in sources]
    assert lines[1] - lines[0] <= 22  # for one more layer


def tie(layers: Any) -> None:
    layers[1].weight = layers[0].weight


def widen(layers: Any) -> None:
    layers[1].weight.data = layers[1].weight.data.double()


def transpose(layers: Any) -> None:
    layers[1].weight.data = layers[1].weight.data.t()


def freeze(layers: Any) -> None:
    layers[1].weight.requires_grad_(False)


def grow(layers: Any) -> None:
    layers[1].bias.data = torch.ones(1)


def negate(layers: Any) -> None:
    layers[1].weight.data = torch.complex(torch.ones(3, 3), torch.ones(3, 3)).conj().imag


def dropped(layers: Any) -> None:
    layers[1].bias = None


def hook(layers: Any) -> None:
    layers[1].register_forward_hook(lambda module, args, result: result + 1)


CHANGES: list[Callable[[Any], None]] = [tie, widen, transpose, freeze, grow, negate, dropped, hook]


@pytest.mark.fractional
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("count", [2, MANY])
def test_each_guard_of_many_tensors_tells_a_change(change: Callable[[Any], None], count: int) -> None:
    recorder = Recorder()
    module, x = Layers(count), torch.randn(2, 3)
    compiled = with_options(module, options(recorder))
    compiled(x)
    compiled(x)
    assert len(recorder.graphs) == 1
    change(module.layers)
    if change is widen:
        module.double()
        x = x.double()
    torch.testing.assert_close(compiled(x), module(x))
    assert len(recorder.graphs) == 2
