"""Programs that check numbers read from data, as `torch._check(n > 3)` does, with values that fit and values that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import sym_and, sym_or


class CheckedProgram(NamedTuple):
    """A function of one tensor of two integers; `fits` passes all its checks, each of `fails` violates one."""

    function: Callable[[Tensor], Tensor]
    fits: tuple[int, int]
    fails: tuple[tuple[int, int], ...]
    captured: bool = True  # False: capture ends a graph at `sym_and` and `sym_or`

    def __str__(self) -> str:
        return self.function.__name__


PROGRAMS: list[CheckedProgram] = []


def _program(fits: tuple[int, int], *fails: tuple[int, int], captured: bool = True) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        PROGRAMS.append(CheckedProgram(function, fits, fails, captured))
        return function

    return add


@_program((5, 0), (3, 0), (10, 0))
def bounds(x: Tensor) -> Tensor:
    n = x[0].item()
    torch._check(n > 3)
    torch._check(n < 10)
    return x * n


@_program((3, 3), (4, 4), (3, 4))
def equal_numbers(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(n == m)
    torch._check(m == 3)
    return x * n


@_program((1, 2), (4, 3), (-1, 1))
def number_of_a_factory(x: Tensor) -> Tensor:
    n: Any = x[0].item()
    torch._check(n >= 0)
    torch._check(2 * n + x[1].item() < 10)
    return torch.ones(n)


@_program((1, 2), (0, 2), (0, 0))
def size_that_depends_on_data(x: Tensor) -> Tensor:
    found = x.nonzero()
    torch._check(found.shape[0] > 1)
    return found + 1


@_program((4, 1), (2, 1))
def after_a_write(x: Tensor) -> Tensor:
    x = x.clone()
    x.add_(1)
    n = x[0].item()
    torch._check(n > 3)
    return x * 2


@_program((5, 1), (1, 1))
def in_a_branch(x: Tensor) -> Tensor:
    def taken(x: Tensor) -> Tensor:
        n = x[0].item()
        torch._check(n > 3)
        return x + 1

    return torch.cond(x[1] > 0, taken, lambda x: x - 1, (x,))


@_program((5, 1), (1, 1), (1, 0))
def again_after_a_branch(x: Tensor) -> Tensor:
    """What a branch checks is not known to hold where it did not run."""
    n = x[0].item()

    def taken(x: Tensor) -> Tensor:
        torch._check(n > 3)
        return x + 1

    y = torch.cond(x[1] > 0, taken, lambda x: x - 1, (x,))
    torch._check(n > 3)
    return y


class _ChecksInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        n = x[0].to(torch.int64).item()
        torch._check(n > 3)
        return tangent * 2


def in_the_backward(x: Tensor) -> Tensor:
    return _ChecksInBackward.apply(x)


@_program((3, 3), (1, 3), (2, 3), (4, 3))
def conjunction_with_an_equation(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(sym_and(n == 3, m > 2))
    return x * n


@_program((3, 3), (3, 4), (4, 4))
def conjunction_of_equations(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(sym_and(n == m, n == 3))
    return x * n


@_program((4, 1), (3, 1), (4, 4), (-4, 1))
def conjunction_over_a_size(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(n >= 0)
    torch._check(n <= 4)
    torch._check(sym_and(n == 4, m != 4))
    return torch.zeros(n)


@_program((3, 3), (4, 1), (3, 1), (1, 3))
def disjunction(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(sym_or(sym_and(n == 3, m == 3), n == 4))
    torch._check(n != 4)
    return x * n
