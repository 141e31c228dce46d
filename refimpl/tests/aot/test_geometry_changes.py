"""Geometry that is changed in place, views by place, and bases of arguments, beside what corpus/geometry.py shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees


def test_what_eager_refuses_of_a_view_is_refused() -> None:
    def program(b: Tensor) -> Any:
        v, _ = b.split(2)
        b.t_()
        v.mul_(2)
        return v

    for run in (program, compile_aot(program)):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            run(torch.randn(4, 4, requires_grad=True) * 1)


def test_the_geometry_of_a_tensor_from_before_changes_in_inference_mode() -> None:
    def program(b: Tensor) -> Any:
        v = b.unsqueeze(0)
        with torch.inference_mode():
            v.swapaxes_(0, 1)
            w = b[1:]
            w.t_()
        return v, w

    assert_agrees(program, lambda: ([], [torch.arange(6.0).reshape(2, 3)]))


def test_a_view_of_a_leaf_cannot_be_changed_in_place() -> None:
    def program(a: Tensor) -> Tensor:
        v = a[0]
        v.unsqueeze_(0)
        return v * 2

    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        program(torch.ones(2, 2, requires_grad=True))
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        compile_aot(program)(torch.ones(2, 2, requires_grad=True))


WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty windows": lambda x: x.unfold(0, 0, 2),
    "windows that overlap": lambda x: x.unfold(0, 2, 1),
    "strides that overlap": lambda x: x.as_strided((2, 2), (1, 1)),
    "windows of columns": lambda x: x.unfold(1, 2, 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_write_to_windows_keeps_the_strides_of_the_input(name: str, *, dynamic: bool) -> None:
    """Random numbers are drawn in the order of memory, and results have the input's strides."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        WINDOWS[name](x).zero_()
        return torch.rand_like(x), x + 1, torch.randint_like(x, 9)

    found = []
    for function in (program, compile_aot(program, dynamic=dynamic)):
        x = torch.arange(12.0).view(3, 4).t()
        torch.manual_seed(0)
        found.append((*function(x), x))
    for expected, result in zip(*found, strict=True):
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)


def test_a_write_to_a_part_of_what_overlaps_itself_reaches_the_rest() -> None:
    def program(a: Tensor) -> Tensor:
        v = a[-1:].view_as(a[-1:])
        v -= 2
        return v[:, 0] + a[0]

    def gradient(function: Callable[[Tensor], Tensor]) -> list[Any]:
        leaf = torch.arange(4.0).view(1, 4).requires_grad_()
        base = leaf * 1
        result = function(base.as_strided((2, 2), (1, 1)))
        (found,) = torch.autograd.grad((result * torch.tensor([2.0, 3.0])).sum() + base.sum(), leaf)
        return [found.tolist(), result.tolist(), base.tolist()]

    assert gradient(compile_aot(program)) == gradient(program)


def test_views_of_another_base_are_another_program() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a * b

    compiled = compile_aot(program)

    def gradient(function: Callable[[Tensor, Tensor], Tensor], rows: int) -> list[Any]:
        leaf = torch.arange(2.0 * rows).view(rows, 2).requires_grad_()
        base = leaf * 1
        result = function(base[:2], base[1:3])
        (found,) = torch.autograd.grad(result.sum() + base.sum(), leaf)
        return [found.tolist(), result.tolist(), base.tolist()]

    for rows in (3, 5, 4, 3):
        assert gradient(compiled, rows) == gradient(program, rows)
