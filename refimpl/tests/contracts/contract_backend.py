"""What tests of the contracts of capture share: a backend that counts, functions, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import refimpl
from refimpl.capture.public.counters import counters
from refimpl.capture.public.running import CAPTURE, running

Tensor = torch.Tensor


class Backend:
    """Counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.examples: list[Sequence[Any]] = []
        self.resets = 0

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        self.examples.append(example_inputs)
        return graph.forward

    def reset(self) -> None:
        self.resets += 1

    @property
    def n(self) -> int:
        return len(self.graphs)

    def targets(self) -> list[list[str]]:
        """For each graph, the names of the functions that it calls."""
        return [
            [getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes if "call" in node.op]
            for graph in self.graphs
        ]


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    refimpl.reset()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    refimpl.reset()
    counters.clear()
    yield
    assert running.mode == CAPTURE, "a context left its mode behind"
    assert not running.is_capturing


def plus_one(x: Tensor) -> Tensor:
    return x + 1


def breaking(x: Tensor) -> Tensor:
    y = x + 1
    refimpl.graph_break()
    return y * 2
