"""Arguments that the compiled program makes of their autograd bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refimpl.pipeline import compile_aot


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
