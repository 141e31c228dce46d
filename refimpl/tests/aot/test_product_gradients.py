"""Gradients of products are eager mode's where factors are 0, infinite or no numbers: it divides only where no factor is 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "prod": lambda x: x.prod(),
    "prod, of dimension 0": lambda x: x.prod(0),
    "prod, of dimension -1, kept": lambda x: x.prod(-1, keepdim=True),
    "prod, in another dtype": lambda x: x.prod(0, dtype=torch.float64),
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod, in another dtype": lambda x: x.cumprod(0, dtype=torch.float64),
}
INF, NAN = float("inf"), float("nan")
if torch.__version__ < "2.12":  # whose eager refuses this gradient where a factor is zero
    del PROGRAMS["cumprod, in another dtype"]
FACTORS = [INF, -INF, NAN, 0.0, 2.0]
ROWS = [list(row) for row in itertools.combinations_with_replacement(FACTORS, 3)]
MATRICES = [[row, ROWS[7 * index % len(ROWS)][::-1]] for index, row in enumerate(ROWS)]


def _first(program: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(program(x).abs().sum() * 3, x)


def _second(program: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (first,) = torch.autograd.grad(program(x).sum(), x, create_graph=True)
    return first, *torch.autograd.grad(first.sum(), x)


@pytest.mark.fractional
@pytest.mark.parametrize("table", [{}, codegen_decompositions()], ids=["operators", "decomposed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_products(name: str, table: dict[Any, Any]) -> None:
    program = PROGRAMS[name]
    compiled = compile_aot(program, decompositions=table)
    for values in MATRICES:
        x = torch.tensor(values, requires_grad=True)
        torch.testing.assert_close(
            _first(compiled, x), _first(program, x), equal_nan=True, msg=lambda m, v=values: f"{v}: {m}"
        )


@pytest.mark.fractional
@pytest.mark.parametrize("order", [_first, _second])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_products_that_the_program_asks_for(name: str, order: Callable[..., Any]) -> None:
    program = PROGRAMS[name]
    compiled = compile_aot(lambda x: order(program, x))
    for values in MATRICES:
        x = torch.tensor(values, requires_grad=True)
        torch.testing.assert_close(compiled(x), order(program, x), equal_nan=True, msg=lambda m, v=values: f"{v}: {m}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64])
@pytest.mark.parametrize("values", [[INF], [2.0], [INF, 2.0], [0.0, 0.0, INF], [NAN, 0.0, 3.0]], ids=str)
def test_gradients_of_products_of_a_row(values: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor(values, dtype=dtype, requires_grad=True)
    for program in (PROGRAMS["prod"], PROGRAMS["cumprod"]):
        actual = _first(compile_aot(program, dynamic=True), x)
        torch.testing.assert_close(actual, _first(program, x), equal_nan=True)


def test_products_within_a_function_transform_do_not_divide() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: y.prod() + y.cumprod(0).sum())(x)

    x = torch.tensor([INF, 2.0])
    expected, actual = gradient(x), compile_aot(gradient)(x)
    assert expected.tolist() == [5, INF]
    assert torch.equal(actual, expected)


def test_products_that_keep_nothing_themselves() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y.prod(0) + y.cumprod(0).sum(0), x, use_reentrant=False)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(program(x).sum(), x)[0]

    x = torch.tensor([[2.0, 3.0], [0.0, 0.5]], requires_grad=True)
    torch.testing.assert_close(compile_aot(gradient)(x), gradient(x))
