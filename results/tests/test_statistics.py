"""Statistics of timings, on values whose answer is known, and on values that must not count as a change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results.statistics import (
    Estimate,
    geomean,
    geomean_estimate,
    is_real_speed_change,
    sign_test,
)


def test_geomean_does_not_clip_slowdowns():
    assert geomean([2.0, 0.5]) == pytest.approx(1.0)
    assert geomean([0.25]) == pytest.approx(0.25)
    assert math.isnan(geomean([]))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_geomean_refuses_what_has_no_logarithm(bad: float):
    with pytest.raises(ValueError, match="geomean of"):
        geomean([1.0, bad])


def test_the_interval_of_the_geomean_holds_the_truth_about_19_times_in_20():
    rng = np.random.default_rng(7)
    covered = 0
    for i in range(200):
        estimate = geomean_estimate(rng.lognormal(0.3, 0.2, size=40).tolist(), seed=i)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= math.exp(0.3) <= estimate.high
    assert 178 <= covered <= 200  # 190 expected; 178 is four standard deviations below


def test_estimates_are_the_same_for_the_same_seed_and_have_no_interval_for_one_value():
    values = [1.0, 1.1, 1.3, 0.9, 2.0]
    assert geomean_estimate(values, seed=3) == geomean_estimate(values, seed=3)
    assert geomean_estimate(values, seed=3) != geomean_estimate(values, seed=4)
    assert geomean_estimate([1.5]) == Estimate(value=1.5)
    assert math.isnan(geomean_estimate([]).value)
    assert geomean_estimate([1.0, 1.0, 1.0]) == Estimate(value=1.0, low=1.0, high=1.0)


def test_the_interval_of_the_geomean_is_about_its_value_and_narrows_with_more_values():
    rng = np.random.default_rng(0)
    few, many = (geomean_estimate(rng.lognormal(0.3, 0.2, size=n).tolist()) for n in (20, 2000))
    for estimate in (few, many):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low < estimate.value < estimate.high
    assert (many.high or 0) - (many.low or 0) < 0.3 * ((few.high or 0) - (few.low or 0))


def test_the_sign_test_tells_a_shift_from_noise():
    assert sign_test([1.1] * 20) < 0.001
    assert sign_test([1.1, 0.9] * 10) > 0.5
    assert sign_test([1.0] * 20) == 1.0  # ties say nothing


def around(value: float, spread: float) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (around(1.5, 0.01), around(1.2, 0.01), True),
        (around(1.2, 0.01), around(1.5, 0.01), True),
        (around(1.5, 0.01), around(1.5, 0.01), False),
        (around(1.5, 0.2), around(1.2, 0.2), False),  # intervals overlap
        (around(1.5, 0.001), around(1.47, 0.001), False),  # 2 %: real perhaps, but not worth a line
        (around(1.5, 0.001), around(1.44, 0.001), True),  # 4 %
        (Estimate(value=1.5), Estimate(value=0.5), False),  # no intervals, no claim
        (around(math.nan, 0.0), around(1.0, 0.01), False),
    ],
)
def test_a_speed_change_is_real_when_the_intervals_part_and_it_exceeds_3_percent(
    base: Estimate, head: Estimate, expected: bool
):
    assert is_real_speed_change(base, head) is expected
