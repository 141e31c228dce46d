"""The tables of what models become as kernels, and of what these take of a GPU, count what there is."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from refimpl.benchmarks import codegen_registers
from refimpl.benchmarks.codegen_models import measure
from refimpl.benchmarks.partition_models import Model


class _Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).exp().sort(dim=-1, stable=True)[0]


def test_calls_are_part_of_kernels_or_named() -> None:
    forward, backward = measure("sorted", lambda: Model(_Sorted(), (torch.randn(4, 8),)))
    assert (forward.graph, backward.graph) == ("forward", "backward")
    assert forward.calls == forward.lowered + forward.fallbacks
    assert forward.fallbacks == 1
    assert forward.by_operator.startswith("1 aten.sort.stable (")
    assert forward.kernels >= 1
    assert backward.lowered >= 1


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_of_a_model_are_compiled_for_two_gpus() -> None:
    rows = codegen_registers.measure("linear", lambda: Model(nn.Linear(24, 8), (torch.randn(4, 24),)))
    assert [(row.graph, row.capability) for row in rows] == [
        (graph, capability) for graph in ("forward", "backward") for capability in (80, 90)
    ]
    for row in rows:
        assert row.kernels >= 1
        assert row.registers >= 16
        assert row.spills == row.spilling == 0
        assert row.worst
