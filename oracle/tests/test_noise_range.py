"""Rounding noise near the largest number of a dtype that has few of them."""

from __future__ import annotations

import pytest
import torch

from oracle.judge.tolerance import TABLE
from oracle.reruns.noise import RoundingNoise


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
@pytest.mark.parametrize("seed", range(4))
def test_float8_results_move_by_about_an_epsilon(name, seed):
    dtype = getattr(torch, name)
    x = torch.cat([torch.linspace(0.1, 8, 500), -torch.linspace(0.1, 8, 500), torch.tensor([torch.finfo(dtype).max])])
    with RoundingNoise(seed):
        moved = x.to(dtype).float()
    assert bool(moved.isfinite().all())
    relative = (moved / x - 1).abs()
    assert float(relative.max()) <= 2.5 * TABLE[dtype].eps  # noise, and two roundings
    assert not torch.equal(moved, x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_bound_of_what_is_moved_is_never_zero_or_below(dtype: torch.dtype, scale: float) -> None:
    """With a limit of 0 or below, clamping would give every number the value of the limit."""
    values = torch.tensor([0.25, 1.0, -5.0])
    noise = RoundingNoise(0, scale=scale)
    noise._factor = 4.0
    moved = noise._moved_dense(values.to(dtype)).double()
    largest = torch.finfo(dtype).eps * scale * 4.0 + torch.finfo(dtype).eps
    assert bool(((moved - values).abs() <= values.abs() * largest).all())
    assert bool((moved != 0).any())
