"""Zeros without memory as arguments and as incoming gradients: they are zero in products with infinities, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
WAYS: dict[str, Callable[[Any], Any]] = {
    "aot, triton": lambda f: compile_aot(f, backend="triton"),
    "aot, symbols": lambda f: compile_aot(f, dynamic=True),
    "captured, aot_eager": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "captured, triton": lambda f: with_options(f, CaptureOptions(backend=triton)),
}
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda z, x: z * x,
    "view": lambda z, x: z.view(3, 1) / x,
    "sum": lambda z, x: (z + 1) * x,
    "itself": lambda z, x: (z, x.sin()),
    "sorted": lambda z, x: z.sort().values + x,
}


def _zeros() -> Tensor:
    return torch._efficientzerotensor(3)


def _in_memory(results: Any) -> list[Tensor]:
    return [result.clone() for result in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.fractional
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_arguments(way: str, program: str, is_first: bool) -> None:
    run, other = PROGRAMS[program], torch.tensor([1.0, float("inf"), 3.0])
    compiled = WAYS[way](run)
    calls = [torch.ones(3), _zeros()] if not is_first else [_zeros(), torch.ones(3)]
    for value in calls:
        found, expected = compiled(value, other), run(value, other)
        torch.testing.assert_close(_in_memory(found), _in_memory(expected), equal_nan=True)


def test_a_captured_tensor() -> None:
    zeros, other = _zeros(), torch.full((3,), float("inf"))
    assert compile_aot(lambda x: zeros * x)(other)._is_zerotensor()


@pytest.mark.parametrize("way", WAYS)
def test_incoming_gradients(way: str) -> None:
    compiled = WAYS[way](lambda x, y: x.sin() * y)
    for factor in (2.0, float("inf")):
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), factor)
        result = compiled(x, y)
        if factor == 2.0:
            (gradient,) = torch.autograd.grad(result.sgn().sum(), x)
            assert not gradient._is_zerotensor()  # kernels have written it
            assert torch.equal(gradient, torch.zeros(3))
        else:
            with pytest.raises(UnsupportedByRefimpl, match="zeros without memory that arrive"):
                torch.autograd.grad(result, x, _zeros())
