"""What witnesses admit, and what they refuse however unstable an element is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.judge.tolerance import TABLE
from oracle.judge.values import GivenRuns, compare_values
from oracle.judge.witnesses import Around, Beyond, Noise, NotFinite, Single, holds_integers
from oracle.tests.outcomes import judged, observation, returned, returned_calls
from oracle.tests.spoiled import verdict_on
from oracle.verdict import Status, Verdict

REFUSED = (Status.FAIL_ACCURACY,)


NEARLY_TIED = (
    "def inputs(call): return (torch.ones(8, 30) + 1e-7 * torch.randn(8, 30), torch.randn(8, 30) * 1e-7), {}\n"
    "def program(a, b): return (a * torch.softmax(b, -1)).argmax(-1)\n"
)
FLOORED = (
    "def inputs(call): return (torch.randn(16, 64) * 300, torch.randn(64, 16) * 300), {}\n"
    "def program(a, b): return torch.floor((a @ b) * 4).long()\n"
)
CANCELLING = (
    "def inputs(call):\n"
    "    x = torch.randn(64)\n"
    "    return (x, x * (1 + 1e-7 * torch.randn(64))), {}\n"
    "def program(x, y): return torch.sqrt(x * x - 2 * x * y + y * y)\n"
)
HILBERT = (
    "def inputs(call):\n"
    "    at = torch.arange(1.0, 13.0)\n"
    "    return (1 / (at[:, None] + at - 1),), {}\n"
    "def program(h): return torch.linalg.inv(h)\n"
)
OVERFLOWING = (
    "def inputs(call): return (torch.rand(64).half() + 2,), {}\n"
    "def program(x): return (x * 60000) / 60000\n"
)  # fmt: skip


@pytest.mark.parametrize(("source", "far"), [(NEARLY_TIED, 123456), (FLOORED, -999999), (NEARLY_TIED, -1)])
def test_an_integer_that_rounding_flips_is_one_of_those_that_eager_gives(source: str, far: int) -> None:
    flipping = verdict_on(source, lambda output: output)
    assert flipping.status in (Status.PASS, Status.PASS_DUE_TO_SKIP)
    for element in range(4):

        def changed(output: torch.Tensor, element: int = element) -> torch.Tensor:
            output = output.clone()
            output.view(-1)[element] = far
            return output

        assert verdict_on(source, changed).status in REFUSED


def test_a_number_that_noise_turns_to_nan_is_no_other_number() -> None:
    def changed(output: torch.Tensor) -> torch.Tensor:
        return torch.where(output < 1e-3, 1e30, output)

    assert verdict_on(CANCELLING, changed).status in REFUSED


@pytest.mark.parametrize("change", [torch.neg, torch.zeros_like])
def test_where_no_digit_is_determined_nothing_passes(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert verdict_on(HILBERT, change).status in (Status.PASS_DUE_TO_SKIP, *REFUSED)


def test_nan_for_a_number_that_overflows_on_the_way_says_nothing() -> None:
    verdict = verdict_on(OVERFLOWING, lambda output: torch.full_like(output, math.nan))
    assert verdict.status is Status.PASS_DUE_TO_SKIP
    assert "does not determine a digit" in verdict.symptom


def column(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers).unsqueeze(-1)


@pytest.mark.parametrize(
    ("seen", "answer", "is_held"),
    [
        ([3] * 20 + [900], 900, True),
        ([3] * 20 + [900], 500, False),
        ([3] * 20 + [900], 901, False),
        ([3] * 22, 4, False),
        ([*range(100, 122)], 300, False),
        ([*range(100, 122)], 110, True),
        ([*range(100, 122)], 125, True),
        ([*range(22)], -1, False),
        ([3, 4] * 11, 5, False),
    ],
)
def test_integers_between_those_seen_are_admitted_only_where_some_are_missing(
    seen: list[int], answer: int, *, is_held: bool
) -> None:
    assert holds_integers(torch.tensor([answer]), column(*seen)).tolist() == [is_held]


def test_sets_of_answers() -> None:
    numbers = torch.tensor([1.0, 2.0, math.nan, math.inf, -math.inf], dtype=torch.float64)
    everywhere = torch.ones(5, dtype=torch.bool)
    around = Around(center=torch.ones(5, dtype=torch.float64), radius=torch.full((5,), 0.5, dtype=torch.float64))
    assert around.holds(numbers).tolist() == [True, False, False, False, False]
    assert NotFinite(where=everywhere).holds(numbers).tolist() == [False, False, True, True, True]
    nan = Single(value=torch.full((5,), math.nan, dtype=torch.float64), where=everywhere)
    assert nan.holds(numbers).tolist() == [False, False, True, False, False]
    beyond = Beyond(start=torch.full((5,), 1.5, dtype=torch.float64), sign=1.0, where=everywhere)
    assert beyond.holds(numbers).tolist() == [False, True, False, False, False]


def open_runs(*numbers: float) -> GivenRuns:
    """Noise, each run of which gives one of these numbers."""
    return GivenRuns(noise=lambda: [torch.tensor([number, 1.0]) for number in numbers])


@pytest.mark.parametrize(
    ("eager", "runs", "answer", "is_right"),
    [
        (1e-4, [math.nan, 2e-4, 3e-4, math.nan], math.nan, True),
        (1e-4, [math.nan, 2e-4, 3e-4, math.nan], math.inf, True),
        (1e-4, [math.nan, 2e-4, 3e-4, math.nan], 1e-3, True),
        (1e-4, [math.nan, 2e-4, 3e-4, math.nan], 1e-2, False),
        (1e-4, [math.nan, 2e-4, 3e-4, math.nan], -1e30, False),
        (math.nan, [math.nan, 2e-4, 3e-4, 1e-4], 1e-2, False),
        (math.inf, [3e38, 3.1e38, math.inf, 3.2e38], 3.3e38, True),
        (math.inf, [3e38, 3.1e38, math.inf, 3.2e38], 1.0, False),
        (math.inf, [3e38, 3.1e38, math.inf, 3.2e38], -3e38, False),
        (math.nan, [math.inf, math.nan, math.nan, math.nan], 1.0, False),
    ],
)
def test_numbers_where_eager_is_finite_or_not_by_chance(
    eager: float, runs: list[float], answer: float, *, is_right: bool
) -> None:
    report = compare_values(torch.tensor([eager, 1.0]), torch.tensor([answer, 1.0]), open_runs(*runs))
    assert report.is_right is is_right


def test_a_verdict_says_what_it_rests_on() -> None:
    eager = torch.tensor([1.0, 1.0, 1.0, 1.0])
    subject = torch.tensor([1.0, 1.0 + 2**-22, 1.0 + 2**-17, 1.0 - 2**-10])
    truth = torch.tensor([1.0, 1.0, 1.0 + 2**-17, 1.0], dtype=torch.float64)
    noise = [returned(torch.tensor([1.0, 1.0, 1.0, 1.0 + sign * 2**-10])) for sign in (1, -1)]
    verdict = judged(returned(eager), returned(subject), truth=returned(truth), noise=noise)
    assert verdict.status is Status.PASS
    assert dict(verdict.witnesses) == {"close": 2, "fp64": 1, "noise": 1}
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_noise_lends_only_to_what_moves() -> None:
    row = TABLE[torch.float32]
    eager = torch.tensor([1000.0, 1.0])
    runs = [torch.tensor([1001.0, 1.0]), torch.tensor([999.0, 1.0])]
    noise = GivenRuns(noise=lambda: runs)
    assert compare_values(eager, torch.tensor([1004.0, 1.0]), noise).is_right
    assert not compare_values(eager, torch.tensor([1000.0, 1.001]), noise).is_right
    assert Noise(row, runs, row.k, lends=True).name == "noise"


# ---------------------------------------------------------------------------------------- eager with other values each time


def arbitrary(shape: tuple[int, ...], number: float, **options: Any) -> Any:
    return returned(torch.full(shape, number, **options))


def test_where_eager_has_other_values_each_time_the_rest_is_owed() -> None:
    eager, again = arbitrary((2, 3), 1.0), arbitrary((2, 3), 2.0)
    right = judged(eager, arbitrary((2, 3), 7.0), eager_again=again)
    assert right.status is Status.EAGER_TWO_RUNS_DIFFER
    for wrong in (
        arbitrary((3, 2), 1.0),
        arbitrary((2, 3), 1.0, dtype=torch.float64),
        returned(torch.ones(2, 3), torch.ones(2, 3)),
    ):
        verdict = judged(eager, wrong, eager_again=again)
        assert verdict.status is Status.FAIL_METADATA
        assert any("were not compared" in text for text in verdict.explained)
    transposed = returned(torch.ones(3, 2).t())
    assert judged(eager, transposed, eager_again=again).status is Status.FAIL_STRIDE


def test_a_tensor_that_eager_repeats_is_owed_beside_one_that_it_does_not() -> None:
    eager, again = (returned(torch.full((2,), number), torch.arange(3.0)) for number in (1.0, 2.0))
    right, wrong = (returned(torch.full((2,), 7.0), torch.arange(3.0) * factor) for factor in (1, 2))
    assert judged(eager, right, eager_again=again).status is Status.EAGER_TWO_RUNS_DIFFER
    assert judged(eager, wrong, eager_again=again).symptom.startswith("call 0: output[1][1] is 2, but should be 1")


def test_what_eager_itself_has_otherwise_each_time_is_not_owed() -> None:
    eager, again = arbitrary((2,), 1.0), arbitrary((3,), 2.0)
    assert judged(eager, arbitrary((4,), 1.0), eager_again=again).status is Status.EAGER_TWO_RUNS_DIFFER


def test_a_generator_state_is_not_owed_where_values_are_not_compared() -> None:
    eager, again = (returned_calls(observation(torch.full((2,), number), rng="a")) for number in (1.0, 2.0))
    subject = returned_calls(observation(torch.ones(2), rng="b"))
    assert judged(eager, subject, eager_again=again).status is Status.EAGER_TWO_RUNS_DIFFER
