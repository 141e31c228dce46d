"""Rounds and what is done in them: a function of the settings and of the programs, not of who was quicker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzz.campaign.coverage import Vocabulary
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.rounds import begin_block, close_rounds, form_batches, may_begin_block
from fuzz.campaign.settings import TRIAL_PROGRAMS, CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket, FoundProgram, Work, new_state
from fuzz.campaign.work import selected_work, task_of
from fuzz.program.structure import FuzzProgram, OpCall
from oracle.isolate import Completed, Died, End, TaskResult, TimedOut
from oracle.subjects.registry import resolve

SETTINGS = CampaignSettings(subject=resolve("eager"), chunk=10, round_size=40, block=40, workers=2)
BATCHED = replace(SETTINGS, subject=resolve("inductor"), batch_size=4)


def take(state: CampaignState, settings: CampaignSettings, key: int, end: End) -> None:
    task = task_of(key, state.work[key], settings, state)
    ResultTaker(settings, state, Listener()).take(TaskResult(task=task, end=end, worker_pid=1, tasks_before=0))


def judged(numbers: tuple[int, ...], **fields: Any) -> Completed:
    programs = [
        {"number": n, "status": "pass", "features": [f"op:f{n % 3}"], "seen": [], "program": None} for n in numbers
    ]
    value = {
        "programs": programs, "findings": [], "ill": [], "errors": [], "judge_errors": [], "left": [], "judgements": len(numbers),
        "draw_cpu_s": 0.0, "judge_cpu_s": 0.0,
    }  # fmt: skip
    return Completed(value={**value, **fields}, wall_s=0.1)


def finding(number: int, target: str, kind: str = "output: number") -> dict[str, Any]:
    program = FuzzProgram(arguments=("a0",), statements=(OpCall(target=target, results=("v0",)),)).to_json()
    verdict = {"status": "fail_accuracy", "symptom": "output is 1, but should be 2"}
    symptom = {"status": "fail_accuracy", "kind": kind}
    return {"numbers": [number], "program": program, "verdict": verdict, "symptom": symptom, "traceback": ""}


def ranges(state: CampaignState) -> list[tuple[int, ...]]:
    return [work.numbers for work in state.work.values() if work.kind == "range"]


def test_the_first_programs_are_judged_one_by_one() -> None:
    state = new_state(SETTINGS)
    begin_block(SETTINGS, state)
    assert ranges(state)[:TRIAL_PROGRAMS] == [(n,) for n in range(TRIAL_PROGRAMS)]
    assert sorted(n for numbers in ranges(state) for n in numbers) == list(range(40))


def test_a_count_cuts_a_round_and_a_larger_one_goes_on_in_it() -> None:
    state = new_state(SETTINGS)
    begin_block(replace(SETTINGS, count=25), state)
    assert not may_begin_block(replace(SETTINGS, count=25), state)
    state.work.clear()
    begin_block(replace(SETTINGS, count=60), state)
    assert sorted(n for numbers in ranges(state) for n in numbers) == list(range(25, 40))


def test_a_block_is_batched_before_the_next_is_begun() -> None:
    settings = replace(BATCHED, block=20)
    state = new_state(settings)
    begin_block(settings, state)
    assert state.next_number == 20
    state.work = {key: work for key, work in state.work.items() if work.kind == "sort"}
    assert not may_begin_block(settings, state)
    state.work.clear()
    assert may_begin_block(settings, state)
    assert [settings.is_scalar(number) for number in (0, 19, 20, 39, 40)] == [False, False, True, True, False]


def test_rounds_close_in_order_and_steer_two_later() -> None:
    state = new_state(SETTINGS)
    state.vocabulary = Vocabulary(operators=("f0", "f1", "f2", "f9"))
    begin_block(SETTINGS, state)
    first = dict(state.work)
    for key in list(first):
        if key != 3:
            take(state, SETTINGS, key, judged(state.work[key].numbers))
    close_rounds(SETTINGS, state)
    assert state.closed_rounds == 0
    assert may_begin_block(SETTINGS, state)  # round 1 needs nothing of round 0
    begin_block(SETTINGS, state)
    for key in [key for key in state.work if key not in first]:
        take(state, SETTINGS, key, judged(state.work[key].numbers))
    close_rounds(SETTINGS, state)
    assert not may_begin_block(SETTINGS, state)  # round 2 does
    take(state, SETTINGS, 3, judged(state.work[3].numbers))
    close_rounds(SETTINGS, state)
    assert state.closed_rounds == 2
    assert set(state.factors) == {2, 3}
    assert state.factors[2]["op:f9"] > state.factors[2]["op:f1"]


def test_steering_does_not_depend_on_the_order_of_results() -> None:
    states = []
    for order in (1, -1):
        state = new_state(SETTINGS)
        state.vocabulary = Vocabulary(operators=("f0", "f1", "f2"))
        begin_block(SETTINGS, state)
        for key in list(state.work)[::order]:
            take(state, SETTINGS, key, judged(state.work[key].numbers))
        close_rounds(SETTINGS, state)
        states.append(state)
    assert states[0].factors == states[1].factors


def test_programs_of_one_kind_are_put_into_batches() -> None:
    state = new_state(BATCHED)
    begin_block(BATCHED, state)
    assert {work.kind for key, work in state.work.items() if key >= TRIAL_PROGRAMS} == {"sort"}
    for key, work in list(state.work.items()):
        if work.kind == "sort":
            keys = {n: None if n == 13 else "plain" if n % 2 else "module" for n in work.numbers}
            programs = [{"number": n, "features": [], "key": keys[n], "program": {}} for n in work.numbers]
            take(state, BATCHED, key, Completed(value={"programs": programs, "errors": []}, wall_s=0.1))
            form_batches(BATCHED, state)
    batches = [work for key, work in state.work.items() if key >= TRIAL_PROGRAMS]
    assert sorted(n for work in batches for n in work.numbers) == list(range(10, 40))
    for work in batches:
        if work.batch_size == 1:
            assert set(work.numbers) == {10, 13, 20, 30}  # each tenth, and the one that is judged alone
        else:
            assert len(work.numbers) <= 4
            assert len({n % 2 for n in work.numbers}) == 1


def test_the_guilty_program_is_a_finding_and_the_others_are_judged_again() -> None:
    state = new_state(SETTINGS)
    state.add_work(Work(kind="range", numbers=(5, 6, 7)))
    end = Died(signal=11, exit_code=None, stage="programs 6: subject", traceback="", stderr="")
    take(state, SETTINGS, 0, end)
    assert [(work.kind, work.numbers) for work in state.work.values()] == [("range", (5, 7)), ("draw", (6,))]
    program = FuzzProgram(arguments=()).to_json()
    drawn = {"programs": [{"number": 6, "features": ["op:x"], "program": program}], "errors": []}
    take(state, SETTINGS, 2, Completed(value=drawn, wall_s=0.1))
    (work,) = [work for work in state.work.values() if work.kind == "confirm"]
    assert work.found is not None
    assert work.found.symptom == {"status": "crash", "kind": "signal 11"}


def test_the_alarm_of_a_worker_is_a_time_limit() -> None:
    state = new_state(SETTINGS)
    state.add_work(Work(kind="range", numbers=(5,)))
    take(state, SETTINGS, 0, Died(signal=14, exit_code=None, stage="programs 5: subject", traceback="", stderr=""))
    assert state.statuses == {"timeout": 1}


def test_what_ends_in_eager_is_no_finding() -> None:
    state = new_state(SETTINGS)
    state.add_work(Work(kind="range", numbers=(5,)))
    end = TimedOut(seconds=60, stage="programs 5: eager again", traceback="", stderr="")
    take(state, SETTINGS, 0, end)
    assert state.statuses == {"eager_fail_to_run": 1}
    assert not state.awaiting_draw


def test_a_batch_whose_worker_dies_is_judged_one_by_one() -> None:
    state = new_state(BATCHED)
    state.add_work(Work(kind="range", numbers=(5, 6, 7), batch_size=4))
    take(state, BATCHED, 0, Died(signal=11, exit_code=None, stage="programs 5 6 7: subject", traceback="", stderr=""))
    (work,) = state.work.values()
    assert (work.numbers, work.batch_size) == ((5, 6, 7), 1)


def test_a_worker_that_dies_again_and_again_does_not_go_on_for_ever() -> None:
    state = new_state(SETTINGS)
    state.add_work(Work(kind="range", numbers=(5, 6)))
    for _ in range(10):
        keys = [key for key, work in state.work.items() if work.kind == "range"]
        for key in keys:
            take(state, SETTINGS, key, Died(signal=9, exit_code=None, stage="load", traceback="", stderr=""))
    assert not ranges(state)
    assert state.error_count == 1


def test_findings_that_a_bucket_explains_are_counted_and_looked_at_now_and_then() -> None:
    state = new_state(SETTINGS)
    state.buckets["k"] = FoundBucket(
        key="k", subject="eager", status="fail_accuracy", kind="output: number", rung="", operators=("add",),
        program={}, source="", verdict={}, numbers=(1,),
    )  # fmt: skip
    for number in range(2, 12):
        state.add_work(Work(kind="range", numbers=(number,)))
        key = max(state.work)
        take(state, SETTINGS, key, judged((number,), findings=[finding(number, "torch.add")]))
    assert state.buckets["k"].alike == 10
    assert sum(work.kind == "confirm" for work in state.work.values()) == 3  # the second, fourth and eighth
    state.add_work(Work(kind="range", numbers=(50,)))
    take(state, SETTINGS, max(state.work), judged((50,), findings=[finding(50, "torch.sub")]))
    assert sum(work.kind == "confirm" for work in state.work.values()) == 4  # another operator


def test_few_findings_of_one_symptom_are_reduced_at_a_time() -> None:
    state = new_state(SETTINGS)
    for number in range(20):
        kind = "output: number" if number % 2 else "grad: number"
        found = FoundProgram.from_json({**finding(number, f"torch.f{number}", kind), "shown": 1})
        state.add_work(Work(kind="reduce", found=found))
    selected = [work for _, work in selected_work(SETTINGS, state, only_findings=True)]
    assert len(selected) == 6
    assert sum(w.found is not None and w.found.symptom["kind"] == "grad: number" for w in selected) == 3
