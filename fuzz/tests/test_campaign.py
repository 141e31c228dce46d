"""Campaigns on compilers with planted faults: found, counted once, and the rest of the campaign as if nothing were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.results import Listener
from fuzz.campaign.run import run_campaign
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, new_state
from fuzz.campaign.summary import summary_json, summary_lines
from fuzz.program.structure import FuzzProgram
from oracle.isolate import Pool
from oracle.subjects.registry import resolve

PRELOAD = ("torch", "oracle.case", "fuzz.campaign.worker")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=2, preload=PRELOAD, address_space_margin_bytes=4 * 2**30) as made:
        yield made


def settings_for(name: str, **changes: Any) -> CampaignSettings:
    subject = resolve(f"compile:fuzz.tests.planted:{name}")
    settings = CampaignSettings(
        subject=subject, focus="ops", count=60, workers=2, case_timeout_s=20, reduces=False, max_statements=3
    )
    return replace(settings, **changes)


def run(settings: CampaignSettings, pool: Pool, state: CampaignState | None = None, **options: Any) -> CampaignState:
    state = state or new_state(settings)
    options = {"listener": Listener(), "save": lambda: None, **options}
    run_campaign(settings, state, pool, **options)
    return state


def drawn(state: CampaignState) -> dict[int, list[str]]:
    """The structured features of every program, which say nearly everything about it."""
    return {number: found for round_ in state.rounds.values() for number, found in sorted(round_.features.items())}


@pytest.fixture(scope="module")
def honest(pool: Pool) -> CampaignState:
    return run(settings_for("honest"), pool)


def test_an_honest_compiler_has_no_finding(honest: CampaignState) -> None:
    assert honest.programs == 60
    assert not honest.buckets
    assert not honest.errors
    assert not honest.work
    assert honest.statuses["pass"] > 50
    assert honest.reached.sizes()["aten"] > 50


def test_a_wrong_value_is_found_and_counted(pool: Pool) -> None:
    state = run(settings_for("wrong_for_rank_two"), pool)
    assert state.statuses["fail_accuracy"] >= 3
    assert {bucket.status for bucket in state.buckets.values()} >= {"fail_accuracy"}
    assert sum(b.count + b.alike for b in state.buckets.values()) == sum(state.symptoms.values())
    assert not state.flaky
    assert state.statuses["pass"] > 20


def test_crashes_are_findings_and_no_other_program_is_lost(pool: Pool, honest: CampaignState) -> None:
    state = run(settings_for("crashes_on_bool"), pool)
    assert state.statuses["crash"] >= 1
    assert state.programs == 60
    assert {b.kind for b in state.buckets.values() if b.status == "crash"} == {"signal 11"}
    assert drawn(state) == drawn(honest)
    for bucket in state.buckets.values():
        specs = FuzzProgram.from_json(bucket.program).calls[0].args
        assert any(isinstance(spec, dict) and spec.get("dtype") == "bool" for spec in specs)


def test_a_program_that_never_ends_is_a_finding(pool: Pool) -> None:
    state = run(settings_for("hangs_on_int16", count=36, case_timeout_s=1.5, chunk=4), pool)
    assert state.statuses["timeout"] >= 1
    assert state.programs == 36
    assert {bucket.status for bucket in state.buckets.values()} == {"timeout"}


def test_a_subject_that_never_ends_is_given_up(pool: Pool) -> None:
    state = run(settings_for("never_ends", case_timeout_s=0.5, count=None, time_s=200), pool)
    assert "does not end on any program" in state.stopped
    assert state.programs < 10
    assert len(state.buckets) == 1


def test_a_subject_that_always_raises_is_given_up(pool: Pool) -> None:
    state = run(settings_for("raises", count=None, time_s=200), pool)
    assert "this subject fails on every program" in state.stopped
    assert "no such compiler" in state.stopped
    assert state.programs < 100
    (bucket,) = state.buckets.values()
    assert bucket.status == "fail_to_run"


def test_a_difference_that_does_not_come_again_is_flaky(pool: Pool) -> None:
    state = run(settings_for("wrong_once", count=20), pool)
    assert not state.buckets
    assert len(state.flaky) >= 1
    assert any("flaky" in line for line in summary_lines(settings_for("wrong_once"), state, corpus=None))


def test_much_output_is_not_kept(pool: Pool) -> None:
    state = run(settings_for("prints_much", count=12), pool)
    assert state.statuses["pass"] >= 10
    assert not state.errors


def test_the_same_seed_gives_the_same_programs_for_any_number_of_workers(pool: Pool) -> None:
    settings = settings_for("honest", count=35, chunk=5, round_size=10, block=10)
    two = run(settings, pool)
    with Pool(workers=1, preload=PRELOAD) as small:
        one = run(replace(settings, workers=1), small)
    assert two.closed_rounds == one.closed_rounds == 3
    assert two.factors == one.factors
    assert two.drawn.counts == one.drawn.counts
    assert drawn(two) == drawn(one)
    other = run(replace(settings, seed=1), pool)
    assert other.drawn.counts != two.drawn.counts


def test_a_campaign_in_two_parts_is_the_campaign_in_one(pool: Pool) -> None:
    settings = settings_for("wrong_for_rank_two", count=35, chunk=5, round_size=10, block=10)
    whole = run(settings, pool)
    first = run(replace(settings, count=17), pool)
    assert first.programs == 17
    resumed = CampaignState.from_json(json.loads(json.dumps(first.to_json())))
    second = run(settings, pool, resumed)
    assert second.programs == 35
    assert second.statuses == whole.statuses
    assert second.drawn.counts == whole.drawn.counts
    assert second.factors == whole.factors


def test_an_interrupted_campaign_goes_on_where_it_was(pool: Pool) -> None:
    settings = settings_for("honest", count=60, chunk=5)
    state = new_state(settings)
    ended = 0

    def interrupt() -> None:
        nonlocal ended
        ended += 1
        if ended == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, pool, state, on_progress=interrupt)
    assert 0 < state.programs < 60
    resumed = CampaignState.from_json(json.loads(json.dumps(state.to_json())))
    assert resumed.to_json() == state.to_json()
    run(settings, pool, resumed)
    assert resumed.programs == 60
    assert sorted(drawn(resumed)) == list(range(60))


def test_the_time_ends_a_campaign(pool: Pool) -> None:
    state = run(settings_for("honest", count=None, time_s=2.0), pool)
    assert state.programs > 0
    assert state.wall_s < 30


def test_the_summary_shows_the_program_and_how_to_repeat_it(pool: Pool, tmp_path: Path) -> None:
    settings = settings_for("wrong_for_rank_two", count=40)
    state = run(settings, pool)
    text = "\n".join(summary_lines(settings, state, corpus=tmp_path))
    bucket = next(iter(state.buckets.values()))
    assert f"--replay {tmp_path}/findings/{bucket.key}.json" in text
    assert "def program(" in text
    assert "fail_accuracy" in text
    assert "40 programs of seed 0" in text
    data = summary_json(settings, state, corpus=None)
    assert json.loads(json.dumps(data))["programs"] == 40
    assert f"--seed 0 --number {bucket.numbers[0]} --focus ops" in json.dumps(data)
