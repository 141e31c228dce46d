"""Functions of kernels: which there are, by which rules, and that each stays within its documented bound on the emulator."""

from __future__ import annotations

import math

import pytest
import torch

from refimpl.codegen.emulator import POINTER_TYPES, run_module
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.lowering.pointwise import RULES
from refimpl.codegen.lowering.state import KERNEL_DTYPES
from refimpl.codegen.printing.error_bounds import ERROR_BOUNDS
from refimpl.codegen.printing.functions import COMPARISONS, FUNCTIONS, TRITON_DTYPES
from refimpl.codegen.scalars import RANDOM_FUNCTIONS, ROUNDING_FUNCTIONS
from refimpl.tests.codegen.function_errors import DTYPES, ONE, TWO, distance, measure, right_results


def test_every_function_has_a_bound() -> None:
    assert set(ERROR_BOUNDS) == set(FUNCTIONS)


def test_every_inexact_function_is_measured() -> None:
    assert len(ROUNDING_FUNCTIONS) > 20
    assert {*ONE, *TWO} >= ROUNDING_FUNCTIONS.keys()


def test_exact_functions_that_are_not_measured_round_nothing() -> None:
    """They choose, compare, check or convert values, or are of integers; `fma` and `cast` are measured by tests of their own."""
    choosing = {"where", "not", "bitcast", "checked_index", "checked_place", "checked_probability", "checked_deviation"}
    of_integers = {"and", "or", "xor", "truncdiv", "mod"}
    measured_apart = {"fma", "cast", "sqrt", *RANDOM_FUNCTIONS}
    assert FUNCTIONS - {*ONE, *TWO} == {*COMPARISONS, *choosing, *of_integers, *measured_apart} - {*ONE, *TWO}


def test_functions_of_one_number_are_atens_operators_of_one_tensor() -> None:
    """All but `pow` and `atan2`, which are of two."""
    for name in ROUNDING_FUNCTIONS.keys() - {"pow", "atan2"}:
        assert getattr(torch.ops.aten, name).default in RULES, name


def test_dtypes_of_kernels_are_those_that_eager_computes_with() -> None:
    """They are Triton's types without the wide unsigned integers, which eager cannot even add."""
    for dtype in POINTER_TYPES.keys() - KERNEL_DTYPES:
        with pytest.raises(RuntimeError, match="not implemented"):
            torch.add(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))
    for dtype in KERNEL_DTYPES:
        assert (torch.ones(2, dtype=dtype) + torch.ones(2, dtype=dtype)).dtype == dtype


def test_triton_has_the_types_that_are_printed() -> None:
    names = " ".join(TRITON_DTYPES.values()).replace("tl.", "").split()
    run_module(f"from triton.language import {', '.join(names)}", "<types>", "types")
    assert TRITON_DTYPES[torch.bool] == "tl.int1"
    assert TRITON_DTYPES[torch.bfloat16] == "tl.bfloat16"


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
