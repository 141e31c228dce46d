"""Errors of ours in a campaign: a program lost is a row of the summary; many of them are the campaign's exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fuzz.campaign.commands import _exit_code
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.run import reason_to_stop
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import NOT_DRAWN, NOT_JUDGED, CampaignState, FoundProgram, Work, new_state
from fuzz.campaign.summary import summary_json, summary_lines
from fuzz.campaign.work import task_of
from fuzz.campaign.worker import judge_range
from fuzz.judge.single import judge
from fuzz.program.structure import FuzzProgram
from oracle.case import CaseResult
from oracle.isolate import Completed, Died, End, Failed, TaskResult, TimedOut
from oracle.program import Program
from oracle.subjects.registry import resolve
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

SETTINGS = CampaignSettings(subject=resolve("eager"), chunk=10, round_size=4000, block=400)


def _take(state: CampaignState, work: Work, end: End) -> None:
    state.add_work(work)
    key = max(state.work)
    task = task_of(key, work, SETTINGS, state)
    ResultTaker(SETTINGS, state, Listener()).take(TaskResult(task=task, end=end, worker_pid=1, tasks_before=0))


def _judged(passing: range, failing: range) -> Completed:
    value: dict[str, Any] = {
        "programs": [
            {"number": n, "status": "pass", "features": ["op:f"], "seen": [], "program": None} for n in passing
        ],
        "errors": [{"number": n, "error": "Traceback ...\nKeyError: 'grammar'"} for n in failing],
        "findings": [], "ill": [], "judge_errors": [], "left": [], "judgements": len(passing),
        "draw_cpu_s": 0.0, "judge_cpu_s": 0.0,
    }  # fmt: skip
    return Completed(value=value, wall_s=0.1)


def _campaign(passing: int, failing: int) -> CampaignState:
    state = new_state(SETTINGS)
    numbers = tuple(range(passing + failing))
    _take(state, Work(kind="range", numbers=numbers), _judged(range(passing), range(passing, passing + failing)))
    return state


@pytest.mark.parametrize(
    ("passing", "failing", "code"), [(1999, 1, 0), (1980, 20, 0), (1979, 21, 3), (0, 5, 3), (50, 1, 3), (2000, 0, 0)]
)
def test_few_lost_programs_do_not_decide_the_exit_code(passing: int, failing: int, code: int) -> None:
    assert _exit_code(_campaign(passing, failing), is_interrupted=False) == code


def test_a_lost_program_is_counted_and_said() -> None:
    state = _campaign(1999, 1)
    assert state.statuses == {"pass": 1999, NOT_DRAWN: 1}
    text = "\n".join(summary_lines(SETTINGS, state, corpus=None))
    assert "1999 pass, 1 not drawn: internal error" in text
    assert "1 internal errors of torch-oracle, 1 of 2000 programs lost to them" in text
    assert "KeyError: 'grammar'" in text
    assert summary_json(SETTINGS, state, corpus=None)["lost"] == 1


@pytest.mark.parametrize(
    ("end", "status", "errors"),
    [
        (
            Died(signal=11, exit_code=None, stage="programs 3: draw", traceback="", stderr=""),
            Status.EAGER_FAIL_TO_RUN.value,
            0,
        ),
        (Died(signal=9, exit_code=None, stage="programs 3: draw", traceback="", stderr=""), NOT_DRAWN, 1),
        (TimedOut(seconds=5.0, stage="programs 3: draw", traceback="", stderr=""), NOT_DRAWN, 1),
    ],
)
def test_eager_that_dies_while_a_program_is_drawn_is_no_error_of_ours(end: End, status: str, errors: int) -> None:
    state = new_state(SETTINGS)
    _take(state, Work(kind="range", numbers=(2, 3, 4)), end)
    assert state.statuses == {status: 1}
    assert state.error_count == errors
    assert [work.numbers for work in state.work.values()] == [(2, 4)]  # the others are judged
    assert [example["number"] for example in state.ill] == ([] if errors else [3])


def test_a_campaign_that_loses_all_of_its_first_programs_stops() -> None:
    assert not reason_to_stop(_campaign(0, 19))
    assert not reason_to_stop(_campaign(1, 40))
    assert "torch-oracle itself fails on every program: 20 of 20" in reason_to_stop(_campaign(0, 20))


def test_a_finding_that_cannot_be_judged_again_for_an_error_of_ours_is_lost_and_counted() -> None:
    state = _campaign(10, 0)
    found = FoundProgram(
        numbers=(3,), program=FuzzProgram(arguments=()).to_json(), verdict={},
        symptom={"status": "fail_accuracy", "kind": "output: number"},
    )  # fmt: skip
    _take(state, Work(kind="confirm", found=found), Failed(error="KeyError: 'judge'"))
    assert (state.lost, state.programs) == (1, 10)
    resumed = CampaignState.from_json(json.loads(json.dumps(state.to_json())))
    assert resumed.lost == 1
    assert _exit_code(resumed, is_interrupted=False) == 3


def _late() -> FoundProgram:
    return FoundProgram(
        numbers=(3,), program=FuzzProgram(arguments=()).to_json(),
        verdict=Verdict(status=Status.TIMEOUT, symptom="no end within 60 s in the subject").to_json(),
        symptom={"status": "timeout", "kind": ""},
    )  # fmt: skip


def test_a_program_that_ran_out_of_time_is_run_once_more_with_more_time() -> None:
    task = task_of(0, Work(kind="confirm", found=_late()), SETTINGS, new_state(SETTINGS))
    assert (task.payload["times"], task.timeout_s) == (1, 3 * SETTINGS.case_timeout_s)


@pytest.mark.parametrize("status", [Status.FAIL_ACCURACY, Status.TIMEOUT])
def test_the_second_run_of_a_program_that_ran_out_of_time_says_what_it_is(status: Status) -> None:
    state = new_state(SETTINGS)
    verdict = Verdict(status=Status.FAIL_ACCURACY, symptom="output: 1, but should be 2")
    value = {
        "shown": True, "runs": 1, "verdict": verdict.to_json(), "symptom": symptom_of(verdict).to_json(), "traceback": ""
    }  # fmt: skip
    late = TimedOut(seconds=180, stage="subject", traceback="", stderr="", cpu_s=179.04)
    _take(
        state,
        Work(kind="confirm", found=_late()),
        late if status is Status.TIMEOUT else Completed(value=value, wall_s=70.0),
    )
    (work,) = state.work.values()
    assert work.kind == "reduce"
    assert work.found is not None
    found = Verdict.from_json(work.found.verdict)
    assert (found.status, work.found.symptom["status"]) == (status, status.value)
    if status is Status.TIMEOUT:
        assert found.symptom == "no end within 180 s (179.0 s of CPU time) in the subject"
        assert found.explained == ("a second run, with more time than the 60 s of a first, did not end either",)


def test_a_state_of_an_earlier_version_has_lost_no_finding() -> None:
    data = json.loads(json.dumps(_campaign(10, 0).to_json()))
    del data["lost_findings"]
    assert CampaignState.from_json(data).lost == 0


def test_a_judge_that_fails_on_one_program_judges_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_but_one(program: Program, *args: Any, **kwargs: Any) -> CaseResult:
        if program.name == "fuzz 1":
            raise KeyError("the judge")
        return judge(program, *args, **kwargs)

    monkeypatch.setattr("fuzz.campaign.worker.judge", judge_but_one)
    payload: dict[str, Any] = {
        "subject": resolve("eager").to_json(), "settings": {"focus": "ops"}, "steering": {}, "seed": 0, "numbers": [0, 1, 2],
        "batch_size": 1, "limit_s": 60.0, "configs": {},
    }  # fmt: skip
    value = judge_range(payload, lambda stage: None)
    assert [(item["number"], item["status"]) for item in value["programs"]] == [(0, "pass"), (1, ""), (2, "pass")]
    assert [error["number"] for error in value["judge_errors"]] == [1]
    state = new_state(SETTINGS)
    _take(state, Work(kind="range", numbers=(0, 1, 2)), Completed(value=value, wall_s=0.1))
    assert state.statuses == {"pass": 2, NOT_JUDGED: 1}
    assert "program 1: " in state.errors[0]
