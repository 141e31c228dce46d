"""Sources of choices: the same from the same seed, within bounds, by weight; Hypothesis shrinks to the first option."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from fuzz.draw.choices import Draw, HypothesisDraw, RandomDraw

OPTIONS = ("simple", "other", "rare")


def some_choices(draw: Draw) -> list[Any]:
    return [
        value
        for _ in range(20)
        for value in (
            draw.integer(-5, 5),
            draw.choice(OPTIONS),
            draw.weighted({"a": 1.0, "b": 0.0, "c": 3.0}),
            draw.chance(0.3),
        )
    ]


@st.composite
def draws(draw: Any) -> HypothesisDraw:
    return HypothesisDraw(draw)


def test_one_seed_gives_one_sequence() -> None:
    assert some_choices(RandomDraw("7/3")) == some_choices(RandomDraw("7/3"))


def test_other_seeds_give_other_sequences() -> None:
    assert len({tuple(some_choices(RandomDraw(seed))) for seed in range(50)}) == 50


@given(draws())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_choices_of_hypothesis_are_within_bounds(draw: HypothesisDraw) -> None:
    assert -5 <= draw.integer(-5, 5) <= 5
    assert draw.choice(OPTIONS) in OPTIONS
    assert draw.weighted({"a": 1.0, "b": 0.0, "c": 3.0}) in ("a", "c")


def test_choices_are_within_bounds() -> None:
    draw = RandomDraw(0)
    numbers = {draw.integer(-2, 2) for _ in range(200)}
    assert numbers == {-2, -1, 0, 1, 2}


def test_options_are_drawn_by_weight() -> None:
    draw = RandomDraw(0)
    counts = Counter(draw.weighted({"a": 3.0, "never": 0.0, "b": 1.0}) for _ in range(4000))
    assert set(counts) == {"a", "b"}
    assert 0.7 < counts["a"] / 4000 < 0.8


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_chances_are_as_likely_as_said(probability: float) -> None:
    draw = RandomDraw(1)
    share = sum(draw.chance(probability) for _ in range(4000)) / 4000
    assert abs(share - probability) < 0.03


@pytest.mark.parametrize("make", [lambda: RandomDraw(0), lambda: HypothesisDraw(lambda strategy: strategy.example())])
def test_no_options_are_refused(make: Any) -> None:
    with pytest.raises(IndexError, match="no options"):
        make().choice(())


def test_weights_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        RandomDraw(0).weighted({"a": 0.0})


def test_hypothesis_shrinks_to_the_first_option() -> None:
    drawn = st.composite(lambda draw: [HypothesisDraw(draw).choice(OPTIONS) for _ in range(3)])
    assert find(drawn(), lambda found: True) == ["simple"] * 3


def test_hypothesis_shrinks_chances_to_no() -> None:
    drawn = st.composite(lambda draw: [HypothesisDraw(draw).chance(0.9) for _ in range(3)])
    assert find(drawn(), lambda found: True) == [False] * 3


def test_hypothesis_reaches_rare_options() -> None:
    drawn = st.composite(lambda draw: HypothesisDraw(draw).weighted({"common": 50.0, "rare": 1.0}))
    assert find(drawn(), lambda found: found == "rare") == "rare"
