"""Constants of exported programs: attributes that are tensors, literals, wherever they are used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from refimpl.export import Dim, InputKind, export

strict_or_not = pytest.mark.parametrize("strict", [False, True])


class Branching(torch.nn.Module):
    """Reads an attribute and a literal in its branches only, in one of them in a branch of the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant = self.constant

        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 3, lambda x: x * constant, lambda x: x + constant, (x,))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return x - constant * torch.tensor([1.0, 2.0, 3.0])

        return torch.cond(x.sum() > 0, positive, negative, (x,))


@strict_or_not
def test_constants_of_branches_are_inputs_of_the_program(strict: bool) -> None:
    module = Branching()
    program = export(module, (torch.ones(3),), strict=strict)
    assert program.constants["constant"] is module.constant
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    assert kinds.count(InputKind.CONSTANT_TENSOR) == len(program.constants)
    for x in (torch.ones(3) * 3, torch.ones(3) / 4, -torch.ones(3)):
        assert torch.equal(program.module()(x), module(x))
        assert torch.equal(program.run_decompositions().module()(x), module(x))


class Indexed(torch.nn.Module):
    """Reads and writes at a place that an input says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(20.0).reshape(4, 5)
        self.weight = torch.nn.Parameter(torch.randn(4, 5))

    def forward(self, place: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n: Any = place.item()
        torch._check(n >= 0)
        torch._check(n < 4)
        y = x.clone()
        y[n] = self.table[n]
        y[..., n] = 0
        y[1:, n] += 1
        rows = torch.tensor([0, 2])
        mask = torch.tensor([True, False, True, False])
        return y, self.weight[n], self.weight[None, n, 1:], self.table[:, n], self.table[rows, n], self.weight[mask, n]


@strict_or_not
def test_tensors_are_indexed_by_numbers_out_of_tensors(strict: bool) -> None:
    module = Indexed()
    x = torch.randn(4, 5)
    program = export(module, (torch.tensor(1), x), strict=strict)
    for place in range(4):
        for got, expected in zip(program.module()(torch.tensor(place), x), module(torch.tensor(place), x), strict=True):
            assert torch.equal(got, expected)


@strict_or_not
def test_tensors_are_indexed_by_sizes(strict: bool) -> None:
    class Last(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[y.shape[0] - 1]

    module = Last()
    x = torch.randn(9, 2)
    program = export(module, (x, torch.ones(4)), dynamic_shapes=(None, {0: Dim("n", max=9)}), strict=strict)
    for size in (3, 9):
        assert torch.equal(program.module()(x, torch.ones(size)), x[size - 1])


def test_a_deep_copy_is_no_constant() -> None:
    class Copying(torch.nn.Module):
        def forward(self, state: dict[str, torch.Tensor]) -> tuple[Any, ...]:
            deep = copy.deepcopy(state)
            x, y = state["x"], deep["x"]
            y.add_(1)
            return x + y, torch.cond(x.sum() > 0, lambda x: x * y, lambda x: x - y, (x,))

    module = Copying()
    program = export(module, ({"x": torch.ones(3)},))
    assert program.constants == {}
    for x in (torch.full((3,), 2.0), torch.full((3,), -2.0)):
        for got, expected in zip(program.module()({"x": x}), module({"x": x}), strict=True):
            assert torch.equal(got, expected)
