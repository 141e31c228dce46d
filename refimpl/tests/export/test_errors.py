"""Errors of export: they speak of the user's program and name the user's line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export
from refimpl.tests.export.forms import STRICT


class Loops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for row in x.nonzero():  # as many as there are
            total = total + row.sum()
        return total


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos() if x.nonzero().shape[0] > 2 else x.sin()  # by data


class Reads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 6:  # by a size
            return x + 1
        return x - 1


@STRICT
@pytest.mark.parametrize(("module", "line"), [(Loops(), "as many as there are"), (Branches(), "by data")])
def test_control_flow_that_depends_on_data_is_named_by_its_line(
    module: torch.nn.Module, line: str, strict: bool
) -> None:
    with pytest.raises(UserError, match="Could not guard on data-dependent") as caught:
        export(module, (torch.tensor([2, 3, 5]),), strict=strict)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {line}"))
    assert re.search(rf"{Path(__file__).name}(:{number} in|\", line {number}, in) forward", str(caught.value))


@STRICT
def test_a_size_that_is_asked_for_is_named_by_its_line(strict: bool) -> None:
    with pytest.raises(UserError, match=r"test_errors.py:\d+ in forward: if x.shape\[0\] > 6:  # by a size"):
        export(Reads(), (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=3)},), strict=strict)


class Combines(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.combinations(x)  # by a mask whose count it does not give


def test_numbers_that_no_result_gives_are_refused() -> None:
    with pytest.raises(UserError, match="with an unbacked symbol that is not in its result"):
        export(Combines(), (torch.ones(3),))


@pytest.mark.parametrize("strict", [False, True])
def test_nested_tensors_are_refused_by_name(strict: bool) -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    with pytest.raises(UnsupportedByRefimpl, match=r"a nested tensor of layout torch\.jagged as an input"):
        export(Combines(), (rows,), strict=strict)


def test_an_operator_without_a_fake_kernel_is_named() -> None:
    class Sparse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(x.to_sparse(), x)

    with pytest.raises(UnsupportedByRefimpl, match=r"aten\._to_sparse\.default, an operator without a fake kernel"):
        export(Sparse(), (torch.eye(3),))


@pytest.mark.parametrize("count", [0, 4])
def test_the_truth_of_several_values_has_eager_s_error(count: int) -> None:
    class Truth(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> bool:
            return torch.ops.aten.is_nonzero(x)

    with pytest.raises(RuntimeError) as expected:
        Truth()(torch.ones(count))
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value).splitlines()[0])):
        export(Truth(), (torch.ones(count),))


def test_a_write_to_a_constant_is_refused_by_its_name() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = torch.zeros(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.seen.add_(x) * 2

    program = export(Counting(), (torch.ones(2),))
    with pytest.raises(UnsupportedByRefimpl, match=r"Constant seen is mutated[^\n]*\n(.*\n)*.*register it as a buffer"):
        program.run_decompositions()
