"""Verdicts on made-up measurements whose noise and changes are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from results.speed import SpeedCase, Word, judge_count, judge_speed, log_costs
from results.speed.costs import CostTable

CASES = 40
TEN_PERCENT = math.log(1.10)


def runs(
    *, seed: int, processes: int, history: int = 0, slower: int = 0, by: float = TEN_PERCENT, shift: float = 0.0,
    process_noise: float = 0.012, run_noise: float = 0.01, **fields: Any,
) -> dict[str, SpeedCase]:  # fmt: skip
    """CASES cases; in head, the first `slower` ones cost more by `by`, and all by `shift`. Noises are standard deviations."""
    rng = np.random.default_rng(seed)

    def run(extra: float, noise: float) -> tuple[tuple[float, ...], ...]:
        middle = extra + rng.normal(0.0, run_noise)
        return tuple((float(middle + rng.normal(0.0, noise)),) for _ in range(processes))

    cases = {}
    for number in range(CASES):
        noise = process_noise * float(rng.lognormal(0.0, 0.3))
        cases[f"case-{number}"] = SpeedCase(
            base=run(0.0, noise),
            head=run(shift + (by if number < slower else 0.0), noise),
            history=tuple(run(0.0, noise) for _ in range(history)),
            **fields,
        )
    return cases


def words(cases: Mapping[str, SpeedCase]) -> list[Word]:
    return [verdict.word for verdict in judge_speed(cases).verdicts.values()]


@pytest.mark.parametrize("history", [0, 5])
@pytest.mark.parametrize("run_noise", [0.0, 0.03])
def test_unchanged_cases_are_hardly_ever_called_changed(history: int, run_noise: float):
    """Two runs differ by more than their processes do. By how much is learned from the cases and their histories."""
    found = [
        word.is_change
        for seed in range(30)
        for word in words(runs(seed=seed, processes=3, history=history, run_noise=run_noise))
    ]
    assert sum(found) / len(found) < 0.01


def test_a_tenth_slower_is_found_and_named_and_the_others_are_not():
    seen = [judge_speed(runs(seed=seed, processes=4, history=5, slower=4)) for seed in range(20)]
    found = [name for judgement in seen for name in judgement.of(Word.WORSE)]
    true = [name for name in found if int(name.removeprefix("case-")) < 4]
    assert len(true) >= 0.95 * 4 * len(seen)
    assert len(found) - len(true) <= 0.15 * len(found)


def test_a_faster_case_is_better_and_has_its_effect_and_interval():
    judgement = judge_speed(runs(seed=1, processes=5, history=5, slower=1, by=-TEN_PERCENT))
    verdict = judgement.verdicts["case-0"]
    assert verdict.word is Word.BETTER
    assert verdict.effect == pytest.approx(1 / 1.10, rel=0.04)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < 1 / 1.10 < verdict.high
    assert verdict.threshold is not None
    assert 1.03 <= verdict.threshold < 1.10


def test_same_is_said_only_where_a_large_change_is_excluded():
    quiet = words(runs(seed=2, processes=5, history=5))
    assert quiet.count(Word.SAME) == CASES
    noisy = judge_speed(runs(seed=2, processes=2, process_noise=0.3))
    assert {verdict.word for verdict in noisy.verdicts.values()} == {Word.NOT_ENOUGH_DATA}
    assert "would not be told from noise" in noisy.verdicts["case-0"].reason
    wild = judge_speed(runs(seed=2, processes=2, process_noise=20.0))
    assert "even 10 times the cost would not be told from noise" in wild.verdicts["case-0"].reason


def test_one_process_without_history_and_other_cases_tells_only_huge_changes():
    def one(cost: float) -> list[Word]:
        return words({"only": SpeedCase(base=((0.0, 0.01, 0.02),), head=((cost, cost + 0.01, cost + 0.02),))})

    assert one(0.0) == one(0.1) == [Word.NOT_ENOUGH_DATA]
    assert one(1.0) == [Word.WORSE]
    assert words({"only": SpeedCase(base=(), head=((0.5,),))}) == [Word.NOT_ENOUGH_DATA]
    assert judge_speed({}).verdicts == {}


def test_a_noisy_past_raises_the_threshold_of_its_case_alone():
    """The same difference counts where the past was quiet, and not where the case has always jumped about."""
    cases = runs(seed=3, processes=3, history=8, run_noise=0.002)
    rng = np.random.default_rng(0)
    jumps = tuple(tuple((float(x),) for x in rng.normal(rng.normal(0.0, 0.15), 0.01, size=3)) for _ in range(8))
    head = ((0.09,), (0.1,), (0.11,))
    base = ((0.0,), (0.01,), (-0.01,))
    quiet = tuple(tuple((float(x),) for x in rng.normal(0.0, 0.01, size=3)) for _ in range(8))
    cases |= {
        "jumpy": SpeedCase(base=base, head=head, history=jumps),
        "steady": SpeedCase(base=base, head=head, history=quiet),
    }
    verdicts = judge_speed(cases).verdicts
    assert verdicts["steady"].word is Word.WORSE
    assert not verdicts["jumpy"].word.is_change


def test_untouched_cases_that_move_together_make_the_run_invalid_and_no_case_slow():
    controls = {
        f"control {name}": case for name, case in runs(seed=4, processes=3, shift=0.05, is_control=True).items()
    }
    judgement = judge_speed({**runs(seed=5, processes=3, slower=10, shift=0.05), **controls})
    assert not judgement.is_valid
    assert "became worse together" in judgement.verdicts["case-0"].reason
    assert not judgement.of(Word.WORSE)
    assert len(judgement.of(Word.RUN_INVALID)) == CASES
    still = {f"control {name}": case for name, case in runs(seed=4, processes=3, is_control=True).items()}
    assert judge_speed({**runs(seed=5, processes=3, slower=10), **still}).of(Word.WORSE)


def test_identical_code_is_the_same_whatever_was_measured():
    cases = runs(seed=6, processes=3, history=4, slower=5)
    for name in ("case-0", "case-1"):
        code = "0123" if name == "case-0" else "4567"
        case = cases[name]
        cases[name] = SpeedCase(base=case.base, head=case.head, history=case.history, base_code="0123", head_code=code)
    verdicts = judge_speed(cases).verdicts
    assert (verdicts["case-0"].word, verdicts["case-0"].reason) == (Word.SAME, "the generated code is the same")
    assert verdicts["case-1"].word is Word.WORSE


def test_costs_that_are_not_positive_and_finite_are_left_out():
    assert log_costs([1.0, None, 0.0, -1.0, math.inf, math.nan]) == ((0.0,),)
    assert words({"only": SpeedCase(base=((math.nan,),), head=((0.0,),))}) == [Word.NOT_ENOUGH_DATA]


@pytest.mark.parametrize(
    ("base", "head", "history", "word", "reason"),
    [
        (1, 1, (), Word.SAME, "1, as before"),
        (0, 2, (), Word.WORSE, "2, was 0"),
        (2, 1, (2, 2), Word.BETTER, "1, was 2"),
        (1, 2, (1, 2, 1), Word.SAME, "2, was 1: it varies from 1 to 2"),
        (1, 3, (1, 2, 1), Word.WORSE, "3, was 1"),
        (1, 2, (2, 2), Word.WORSE, "2, was 1"),  # it went down once, and now goes up: that is a change
        (None, 2, (), Word.NOT_ENOUGH_DATA, "not counted in base"),
    ],
)
def test_a_count_changed_unless_its_history_shows_that_it_varies(
    base: int | None, head: int | None, history: tuple[int, ...], word: Word, reason: str
):
    verdict = judge_count(base, head, history)
    assert (verdict.word, verdict.reason) == (word, reason)


@pytest.mark.parametrize(("noise_class", "centre"), [("under 0.1 ms", 0.02), ("under 10 ms", 0.1), ("", 0.08)])
def test_short_calls_are_judged_by_their_quietest_blocks_and_longer_ones_by_all(noise_class: str, centre: float):
    process = (0.02, 0.2, 0.01, 0.12, 0.03, 0.08, 0.05, 0.09, 0.3)
    table = CostTable.of({"one": SpeedCase(base=(process,), head=(process[::-1],), noise_class=noise_class)})
    assert table.mean.tolist() == [pytest.approx([centre, centre])]


def test_a_case_with_a_process_of_few_blocks_is_judged_by_medians_in_all_runs():
    long, few = (0.02, 0.2, 0.01, 0.12, 0.03, 0.08, 0.05, 0.09, 0.3), (0.0, 0.5, 0.9)
    case = SpeedCase(base=(long, few), head=(long,), history=((long,),), noise_class="under 0.1 ms")
    assert CostTable.of({"one": case}).mean.tolist() == [pytest.approx([0.08, 0.29, 0.08])]


def test_a_disturbance_of_some_blocks_of_short_calls_is_no_slowdown():
    rng = np.random.default_rng(0)

    def process(*, disturbed: bool) -> tuple[float, ...]:
        return tuple(float(rng.normal(0, 0.005)) + (0.2 if disturbed and block < 5 else 0) for block in range(9))

    cases = {
        f"case-{number}": SpeedCase(
            base=tuple(process(disturbed=False) for _ in range(5)),
            head=tuple(process(disturbed=number == 0) for _ in range(5)),
            noise_class="under 0.1 ms",
        )
        for number in range(20)
    }
    assert words(cases) == [Word.SAME] * 20
