"""Cases that fail are run again, each time in a fresh process, and recorded with what these runs gave."""

from __future__ import annotations

from typing import Any

import pytest

from oracle.again import VARIABLE
from oracle.isolate import Completed, End, Failed, OutOfMemory, Task
from oracle.records import PlannedCase, Record
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import Limits, execute
from oracle.tests.test_sweep_timeouts import CRASHED, PASSED, Script, Sink, StandInPool
from oracle.verdict import Status, Verdict

WRONG = Completed(
    value={
        **PASSED.value,
        "verdict": Verdict(status=Status.FAIL_ACCURACY, symptom="call 0: output is 1, but should be 0").to_json(),
    },
    wall_s=1.0,
)
FULL = OutOfMemory(bytes=1, stage="subject", traceback="")


def swept(end_of: Script, *, reruns: int = 2, deadline: float | None = None) -> tuple[dict[str, Verdict], list[Any]]:
    """The verdicts of cases c0, c1 and c2, and the tasks that the pool was given together."""
    cases = [PlannedCase(case_id=f"c{i}", suite="s", group="g", name=f"c{i}", subject="aot_eager") for i in range(3)]
    pool: Any = StandInPool(end_of)
    sink: Any = Sink()
    summary = execute(
        cases,
        subjects={"aot_eager": SubjectSpec(name="aot_eager", kind="torch_compile", env={"A": "1"})},
        sink=sink,
        run_id="r",
        pool=pool,
        limits=Limits(),
        options={},
        deadline=deadline,
        reruns=reruns,
    )
    assert summary.done == len(sink.records) == 3
    records: list[Record] = sink.records
    return {record.name: record.verdict for record in records}, pool.runs


def number_of(task: Task) -> str:
    return dict(task.environment).get(VARIABLE, "0")


def test_a_case_that_fails_now_and_then_says_how_often() -> None:
    def end_of(task: Task) -> End:
        ends: dict[str, list[End]] = {"c0": [WRONG, PASSED, WRONG], "c1": [PASSED], "c2": [CRASHED, CRASHED, FULL]}
        return ends[task.key][int(number_of(task))]

    verdicts, runs = swept(end_of)
    assert [[task.key for task in run] for run in runs] == [["c0", "c1", "c2"], ["c0", "c2"], ["c0", "c2"]]
    assert {task.function for run in runs[1:] for task in run} == {"oracle.case:run_case_again"}
    assert dict(runs[2][0].environment) == {"A": "1", VARIABLE: "2"}
    assert (verdicts["c0"].reruns, verdicts["c0"].frequency) == (("pass", "fail_accuracy"), "in 2 of 3 runs")
    assert verdicts["c0"].is_flaky
    assert verdicts["c1"].reruns == ()
    assert (verdicts["c2"].status, verdicts["c2"].reruns) == (Status.CRASH, ("crash", "OOM"))
    assert not verdicts["c2"].is_flaky


def test_an_error_of_torch_oracle_in_a_rerun_says_nothing_of_the_case() -> None:
    verdicts, _ = swept(lambda task: WRONG if number_of(task) != "1" else Failed(error="KeyError: 1"))
    assert verdicts["c0"].reruns == ("fail_accuracy",)


@pytest.mark.parametrize(("reruns", "deadline"), [(0, None), (2, 0.0)])
def test_without_reruns_and_after_the_deadline_failures_are_recorded_as_they_are(
    reruns: int, deadline: float | None
) -> None:
    verdicts, runs = swept(lambda task: WRONG, reruns=reruns, deadline=deadline)
    assert {(verdict.status, verdict.reruns) for verdict in verdicts.values()} == {(Status.FAIL_ACCURACY, ())}
    assert len(runs) == 1


def test_failures_are_recorded_if_their_reruns_are_interrupted() -> None:
    seen: list[Record] = []

    def end_of(task: Task) -> End:
        if number_of(task) != "0":
            raise KeyboardInterrupt
        return WRONG

    sink: Any = Sink()
    sink.records = seen
    pool: Any = StandInPool(end_of)
    case = PlannedCase(case_id="c0", suite="s", group="g", name="c0", subject="aot_eager")
    with pytest.raises(KeyboardInterrupt):
        execute(
            [case],
            subjects={"aot_eager": SubjectSpec(name="aot_eager", kind="torch_compile")},
            sink=sink,
            run_id="r",
            pool=pool,
            limits=Limits(),
            options={},
            reruns=1,
        )
    assert [record.verdict.status for record in seen] == [Status.FAIL_ACCURACY]
