"""Magnitudes at the edge of what a dtype holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from oracle.judge.values import GivenRuns, compare_values
from oracle.reruns.noise import RoundingNoise

DTYPES = [torch.float32, torch.float64]


def noisy(fn: Callable[[], torch.Tensor], seed: int) -> torch.Tensor:
    with RoundingNoise(seed):
        return fn()


def is_right(fn: Callable[[], torch.Tensor], subject: torch.Tensor) -> bool:
    runs = GivenRuns(noise=lambda: [noisy(fn, seed) for seed in range(3)])
    return compare_values(fn(), subject, runs).is_right


def edge(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates whose magnitude is the largest number, half of it, and beyond it."""
    largest = torch.finfo(dtype).max
    factors = torch.tensor([1.0, 0.5, 1.2], dtype=torch.float64)
    of_x, of_y = (torch.tensor(part, dtype=dtype) * largest * factors.to(dtype) for part in (0.6, 0.8))
    return of_x, of_y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_at_the_edge_a_magnitude_is_open(dtype: torch.dtype) -> None:
    x, y = edge(dtype)
    for fn in (lambda: torch.hypot(x, y), lambda: torch.complex(x, y).abs()):
        eager, other = fn(), noisy(fn, 0)
        assert (eager.isinf() != other.isinf()).tolist() == [True, False, False]
        assert other.dtype is dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_at_the_edge_a_direction_is_open(dtype: torch.dtype) -> None:
    z = torch.complex(*edge(dtype))
    eager, other = torch.sgn(z), noisy(lambda: torch.sgn(z), 0)
    assert ((eager == 0) != (other == 0)).tolist() == [True, False, False]
    assert torch.maximum(eager[0].abs(), other[0].abs()).item() == pytest.approx(1.0)
    assert torch.equal(torch.sgn(z.clone()), eager)


def test_strides_and_arguments_stay() -> None:
    z = torch.complex(*edge(torch.float32)).expand(2, 3).t()
    before = z.clone()
    other = noisy(lambda: torch.sgn(z), 0)
    assert other.stride() == torch.sgn(z).stride()
    assert torch.equal(z, before)


def test_beside_the_edge_a_direction_that_is_lost_is_wrong() -> None:
    z = torch.complex(*edge(torch.float32))[:2]
    right, lost = torch.sgn(z), torch.sgn(z)
    lost[0] = 0
    assert is_right(lambda: torch.sgn(z), lost)
    assert is_right(lambda: torch.sgn(z), right)
    for number in (0.0, 1.0):
        wrong = right.clone()
        wrong[1] = number
        assert not is_right(lambda: torch.sgn(z), wrong)


def test_gradients_are_open_as_well() -> None:
    """polar: its backward divides by the magnitude of the result, which the program does not show."""
    size, angle = torch.full((64,), torch.finfo(torch.float32).max), torch.linspace(0.1, 3.0, 64)

    def gradient() -> torch.Tensor:
        leaf = size.clone().requires_grad_()
        torch.polar(leaf, angle).real.sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    eager, others = gradient(), [noisy(gradient, seed) for seed in range(3)]
    assert all(((other == 0) | (other - torch.cos(angle)).abs().le(1e-5)).all() for other in others)
    assert any((other != 0).ne(eager != 0).any() for other in others)


def test_infinities_and_zeros_are_not_at_the_edge() -> None:
    z = torch.complex(torch.tensor([math.inf, 0.0, math.nan]), torch.tensor([1.0, 0.0, 1.0]))
    eager, other = z.abs(), noisy(lambda: z.abs(), 0)
    assert torch.equal(eager.isnan(), other.isnan())
    assert torch.equal(eager[:2], other[:2])
