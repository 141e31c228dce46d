"""Every function that kernels have a text for has a documented bound, and stays within it on the emulator."""

from __future__ import annotations

import math

import pytest
import torch

from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.printing.error_bounds import ERROR_BOUNDS
from refimpl.codegen.printing.functions import FUNCTIONS
from refimpl.tests.function_errors import DTYPES, ONE, TWO, distance, measure, right_results


def test_every_function_has_a_bound() -> None:
    assert set(ERROR_BOUNDS) == set(FUNCTIONS)


def test_every_inexact_function_is_measured() -> None:
    """But for those whose arguments are not floats, and random numbers."""
    inexact = {name for name, bounds in ERROR_BOUNDS.items() if bounds[torch.float32].source == "CUDA"}
    assert inexact <= {*ONE, *TWO}
    assert len(inexact) > 20


@pytest.mark.parametrize("function", [*ONE, *TWO])
def test_functions_stay_within_their_bounds(function: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        (row,) = measure(function, dtype, {"emulator": EmulatorLevel()}, 4096)
        assert row.ulp <= row.bound, row


def test_distances_count_the_numbers_between() -> None:
    for dtype in DTYPES:
        x = torch.tensor([1.0, -0.0, -1.0, 2.0, math.inf, math.nan, math.nan], dtype=dtype)
        y = torch.tensor([1.0, 0.0, -1.0, 2.0, torch.finfo(dtype).max, math.nan, 1.0], dtype=dtype)
        y[0], y[2] = y[0].nextafter(y[1]), y[2].nextafter(y[1])
        assert distance(x, y).tolist() == [1, 0, 1, 0, 1, 0, torch.iinfo(torch.int64).max]


def test_a_function_that_is_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ONE, "exp", (lambda x: ONE["expm1"][0](x) + 1.0, ONE["exp"][1]))
    (row,) = measure("exp", torch.float32, {"emulator": EmulatorLevel()}, 4096)
    assert row.ulp > row.bound


def test_what_is_right_in_float64_is_rounded_from_more_bits() -> None:
    x = torch.arange(1, 100, dtype=torch.float64)
    assert right_results("sqrt", [x]).tolist() == [math.sqrt(value) for value in x.tolist()]
