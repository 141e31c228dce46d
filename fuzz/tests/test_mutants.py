"""Every planted bug shows on its trigger, with the symptom it is said to have, and not on its control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fuzz.mutants import MUTANTS, Mutant
from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.isolate import Died, Pool, Task, TimedOut
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.records import PlannedCase
from oracle.subjects.registry import load, resolve
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

_IN_PROCESS = [m for m in MUTANTS.values() if not {"crash", "timeout"} & set(m.statuses)]


def _verdict(mutant: Mutant, program: Program, *, is_brief: bool = False) -> Verdict:
    state, subject = EagerState(make=lambda: instantiate(program)), load(resolve(mutant.subject))
    return judge_subject(eager=state, subject=subject, options=CaseOptions(), is_brief=is_brief).verdict


def test_there_are_enough_of_each_kind() -> None:
    assert len(MUTANTS) >= 30
    assert {mutant.stage for mutant in MUTANTS.values()} >= {
        "graph",
        "forward",
        "backward",
        "runtime",
        "guards",
        "compile",
    }
    assert {mutant.rarity for mutant in MUTANTS.values()} == {"common", "some", "rare"}


@pytest.mark.parametrize("mutant", _IN_PROCESS, ids=lambda mutant: mutant.name)
def test_a_trigger_shows_the_bug(mutant: Mutant) -> None:
    verdict = _verdict(mutant, mutant.program(mutant.trigger))
    assert verdict.status.value in mutant.statuses, verdict


@pytest.mark.parametrize("mutant", _IN_PROCESS, ids=lambda mutant: mutant.name)
def test_a_brief_verdict_on_three_calls_says_what_the_whole_one_says(mutant: Mutant) -> None:
    program = mutant.program(mutant.trigger)
    if len(program.calls) == 1:
        program = replace(program, calls=program.calls * 3)
    whole, brief = (_verdict(mutant, program, is_brief=is_brief) for is_brief in (False, True))
    assert whole.status.is_finding
    assert symptom_of(brief) == symptom_of(whole)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_control_does_not(mutant: Mutant) -> None:
    verdict = _verdict(mutant, mutant.program(mutant.control))
    assert verdict.status is Status.PASS, verdict


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=1, preload=("torch", "oracle.case")) as made:
        yield made


@pytest.mark.parametrize("name", ["empty_tensors_crash", "rank_five_hangs"])
def test_a_trigger_ends_its_worker(name: str, pool: Pool) -> None:
    mutant = MUTANTS[name]
    case = PlannedCase(
        case_id=name,
        suite="",
        group="",
        name=name,
        subject=mutant.subject,
        program=mutant.program(mutant.trigger).to_json(),
    )
    task = Task(
        key=name,
        function="oracle.case:run_case",
        payload={"case": case.to_json(), "subject": resolve(mutant.subject).to_json()},
        group="",
        timeout_s=4 if "timeout" in mutant.statuses else 60,
        memory_bytes=4 << 30,
    )
    (result,) = pool.run([task])
    assert isinstance(result.end, TimedOut if "timeout" in mutant.statuses else Died), result.end
