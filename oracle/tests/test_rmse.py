"""Root mean square errors: which elements count, how many are evidence, and when a bound is exceeded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from oracle.judge import rmse
from oracle.judge.rmse import Rmse, noise_rmse, rmse_of
from oracle.judge.tolerance import TABLE

NONE_LEFT_OUT = torch.zeros(0, dtype=torch.int64)
SINGLE = TABLE[torch.float32]


def of_errors(*errors: float, truth: float = 2.0, dtype: torch.dtype = torch.float64) -> Rmse:
    """The Rmse of a subject with these errors, where eager has half of each error."""
    error, base = torch.tensor(errors, dtype=dtype), torch.full((len(errors),), truth, dtype=dtype)
    return rmse_of(base + error / 2, base + error, base, without=NONE_LEFT_OUT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_errors_and_magnitudes_are_root_mean_squares(dtype: torch.dtype) -> None:
    found = of_errors(3.0, -3.0, 3.0, 3.0, truth=-4.0, dtype=dtype)
    assert (found.subject, found.eager, found.magnitude) == (3.0, 1.5, 4.0)
    mixed = of_errors(3.0, 4.0, 0.0, 0.0)
    assert (mixed.subject, mixed.eager) == (2.5, 1.25)


def test_a_complex_number_is_as_large_as_its_modulus() -> None:
    truth = torch.tensor([3 + 4j, 3 - 4j])
    found = rmse_of(truth, truth + (0.6 + 0.8j), truth, without=NONE_LEFT_OUT)
    assert found.magnitude == 5.0
    assert found.subject == pytest.approx(1.0)
    assert noise_rmse(truth, truth + (0.6 + 0.8j), without=NONE_LEFT_OUT) == pytest.approx(1.0)


def test_the_error_of_one_element_is_its_root_mean_square() -> None:
    found = of_errors(0.5)
    assert (found.subject, found.eager, found.magnitude, found.effective_elements) == (0.5, 0.25, 2.0, 1.0)
    one = torch.ones(1)
    assert noise_rmse(one, one + 0.5, without=NONE_LEFT_OUT) == 0.5


def test_errors_far_below_the_range_of_float32_count() -> None:
    assert of_errors(1e-60, 1e-60, truth=1e-50).subject == pytest.approx(1e-60, rel=1e-4, abs=0)


def test_nothing_but_elements_left_out_has_no_error() -> None:
    one, everything = torch.ones(2), torch.tensor([0, 1])
    found = rmse_of(one, one + 1, one, without=everything)
    assert (found.subject, found.eager, found.magnitude) == (0.0, 0.0, 0.0)
    assert noise_rmse(one, one + 1, without=everything) == 0.0


@pytest.mark.parametrize(
    ("errors", "effective"),
    [([1e-3] * 8, 8.0), ([1e-3] * 4 + [0.0] * 4, 4.0), ([1.0] + [1e-6] * 7, 1.0), ([0.0] * 8, 8.0)],
    ids=["all alike", "half of them", "a large one and dust", "none"],
)
def test_elements_are_evidence_as_far_as_they_err(errors: list[float], effective: float) -> None:
    assert of_errors(*errors).effective_elements == pytest.approx(effective, rel=1e-6)


# --------------------------------------------------------------------------------------------- elements that are left out


@pytest.mark.parametrize("special", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_an_element_that_is_not_finite_on_one_side_is_left_out(side: int, special: float) -> None:
    sides = [torch.full((4,), number, dtype=torch.float64) for number in (1.25, 1.5, 1.0)]
    sides[side][2] = special
    eager, subject, truth = sides
    assert rmse_of(eager, subject, truth, without=NONE_LEFT_OUT) == rmse_of(
        *(torch.full((3,), number, dtype=torch.float64) for number in (1.25, 1.5, 1.0)), without=NONE_LEFT_OUT
    )
    if side < 2:
        assert noise_rmse(eager, subject, without=NONE_LEFT_OUT) == 0.25


def numbered(elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Eager, a subject and a truth, each element of which has another error."""
    truth = torch.arange(1.0, elements + 1, dtype=torch.float64)
    error = 2.0 ** -torch.arange(elements, dtype=torch.float64)
    return truth - error / 4, truth + error, truth


@pytest.mark.parametrize("without", [[], [0], [3], [4], [3, 4, 7], [8, 9], [4, 5, 6, 7]])
def test_no_element_is_lost_where_large_tensors_are_cut(without: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    eager, subject, truth = numbered(10)
    kept = torch.tensor([at for at in range(10) if at not in without])
    monkeypatch.setattr(rmse, "CHUNK", 4)
    found = rmse_of(eager, subject, truth, without=torch.tensor(without, dtype=torch.int64))
    assert found.subject == pytest.approx(float((subject - truth)[kept].square().mean().sqrt()))
    assert found.eager == pytest.approx(float((eager - truth)[kept].square().mean().sqrt()))
    assert found.magnitude == pytest.approx(float(truth[kept].square().mean().sqrt()))
    noise = noise_rmse(eager, subject, without=torch.tensor(without, dtype=torch.int64))
    assert noise == pytest.approx(float((subject - eager)[kept].square().mean().sqrt()))


# ----------------------------------------------------------------------------------------------------------------- bounds


def test_a_single_element_is_allowed_the_row_s_factor_and_not_a_bit_more() -> None:
    at_the_bound = Rmse(subject=SINGLE.k * 0.25, eager=0.25, magnitude=1.0, effective_elements=1.0)
    assert at_the_bound.bound(SINGLE) == SINGLE.k * 0.25
    assert not at_the_bound.is_exceeded(SINGLE)
    above = Rmse(subject=SINGLE.k * 0.2501, eager=0.25, magnitude=1.0, effective_elements=1.0)
    assert above.is_exceeded(SINGLE)
    assert not above.is_exceeded(SINGLE, noise=0.26)


@pytest.mark.parametrize(("eager", "magnitude"), [(0.0, 0.0), (0.0, 1.0), (2.0**-23, 0.0)])
def test_an_exact_eager_is_lent_its_precision_or_the_smallest_number(eager: float, magnitude: float) -> None:
    unit = max(SINGLE.eps * max(eager * 2**23, magnitude), SINGLE.tiny)
    for factor, is_exceeded in ((0.9, False), (1.1, True)):
        found = Rmse(subject=factor * SINGLE.rmse * unit, eager=eager, magnitude=magnitude, effective_elements=1e12)
        assert found.is_exceeded(SINGLE) is is_exceeded
