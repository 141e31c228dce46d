"""The table of what models become as kernels counts what there is."""

from __future__ import annotations

import torch
from torch import nn

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
