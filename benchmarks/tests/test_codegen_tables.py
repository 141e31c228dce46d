"""The tables of what models become as kernels, and of what these take of a GPU, count what there is."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from benchmarks.measurements import codegen_models, codegen_registers
from benchmarks.model_graphs import graphs_of, graphs_of_models
from benchmarks.models import Model


class _Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).exp().sort(dim=-1, stable=True)[0]


def test_calls_are_part_of_kernels_or_named() -> None:
    graphs = graphs_of("sorted", lambda: Model(_Sorted(), (torch.randn(4, 8),)))
    forward, backward = map(codegen_models.row_of, graphs)
    assert (forward.graph, backward.graph) == ("forward", "backward")
    assert forward.calls == forward.lowered + forward.fallbacks
    assert forward.fallbacks == 1
    assert forward.by_operator.startswith("1 aten.sort.stable (")
    assert forward.kernels >= 1
    assert backward.lowered >= 1


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_of_a_model_are_compiled_for_two_gpus() -> None:
    graphs = graphs_of("linear", lambda: Model(nn.Linear(24, 8), (torch.randn(4, 24),)))
    rows = [row for graph in graphs for row in codegen_registers.rows_of(graph)]
    assert [(row.graph, row.capability) for row in rows] == [
        (graph, capability) for graph in ("forward", "backward") for capability in (80, 90)
    ]
    for row in rows:
        assert row.kernels >= 1
        assert row.registers >= 16
        assert row.spills == row.spilling == 0
        assert row.worst


def test_graphs_of_models_have_a_gpus_statistics() -> None:
    """A CPU's are in float64 for an image."""
    image = torch.randn(2, 3, 4, 4, requires_grad=True)
    graphs = graphs_of("norm", lambda: Model(nn.BatchNorm2d(3), (image,)))
    assert len(graphs) == 2
    for graph in graphs:
        values = [
            node.meta["val"] for node in graph.module.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)
        ]
        assert values
        assert torch.float64 not in {value.dtype for value in values}


def test_models_are_found_by_a_part_of_their_names() -> None:
    found = list(graphs_of_models("mlp relu"))
    assert [[(graph.model, graph.direction) for graph in graphs] for graphs in found] == [
        [("mlp relu", "forward"), ("mlp relu", "backward")]
    ]
    assert not list(graphs_of_models("no such model"))
