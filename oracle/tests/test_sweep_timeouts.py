"""A case that ran out of time is run again alone, with more time, before anything is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from oracle.isolate import START_UP, Completed, Died, End, Task, TaskResult, TimedOut
from oracle.records import PlannedCase, Record
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import CONFIRMATIONS, Limits, SweepSummary, execute, verdict_of_end
from oracle.verdict import Status, Verdict

PASSED = Completed(
    value={
        "verdict": Verdict(status=Status.PASS).to_json(), "measurements": {}, "seed": 0, "started_at": "", "traceback": ""
    },
    wall_s=1.0,
)  # fmt: skip
CRASHED = Died(signal=11, exit_code=None, stage="subject", traceback="", stderr="")
Script = Callable[[Task], End]


def late(seconds: float, *, stage: str = "subject", **more: Any) -> TimedOut:
    return TimedOut(seconds=seconds, stage=stage, traceback="", stderr="", **more)


class StandInPool:
    """Ends of tasks by a script, and which tasks it was given together."""

    def __init__(self, end_of: Script, *, places: int = 1) -> None:
        self.places = places
        self.runs: list[list[Task]] = []
        self._end_of = end_of

    def run(self, tasks: Iterable[Task]) -> StandInResults:
        self.runs.append(list(tasks))
        return StandInResults(self.runs[-1], self._end_of)


class StandInResults:
    """What `Pool.run` returns, but that a deadline does not cut it short."""

    def __init__(self, tasks: list[Task], end_of: Script) -> None:
        self._tasks, self._end_of = tasks, end_of

    def __iter__(self) -> Iterator[TaskResult]:
        for task in self._tasks:
            yield TaskResult(task=task, end=self._end_of(task), worker_pid=1, tasks_before=0)

    def close(self) -> None:
        """Nothing to stop."""


class Sink:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, records: Iterable[Record]) -> None:
        self.records.extend(records)


def executed(cases: list[PlannedCase], sink: Any, pool: Any, *, deadline: float | None = None) -> SweepSummary:
    return execute(
        cases,
        subjects={"aot_eager": SubjectSpec(name="aot_eager", kind="torch_compile")},
        sink=sink,
        run_id="r",
        pool=pool,
        limits=Limits(timeout_s=15.0),
        options={},
        deadline=deadline,
    )


def swept(
    end_of: Script, *, count: int = 3, deadline: float | None = None, places: int = 1
) -> tuple[dict[str, Verdict], SweepSummary, Any]:
    """The verdicts of cases c0, c1 ..., by their names; the summary; the pool."""
    cases = [
        PlannedCase(case_id=f"c{i}", suite="s", group=f"c{i}", name=f"c{i}", subject="aot_eager") for i in range(count)
    ]
    pool: Any = StandInPool(end_of, places=places)
    sink: Any = Sink()
    summary = executed(cases, sink, pool, deadline=deadline)
    return {record.name: record.verdict for record in sink.records}, summary, pool


def test_a_case_that_ends_alone_has_its_real_verdict_and_says_that_it_was_late_before() -> None:
    verdicts, summary, pool = swept(lambda task: late(15) if task.key == "c0" and task.timeout_s == 15 else PASSED)
    assert [[(task.key, task.timeout_s) for task in run] for run in pool.runs] == [
        [("c0", 15), ("c1", 15), ("c2", 15)],
        [("c0", 45)],
    ]
    assert {verdict.status for verdict in verdicts.values()} == {Status.PASS}
    assert verdicts["c0"].explained == (
        "a first attempt had not ended after 15 s; this is a second, alone and with more time",
    )
    assert verdicts["c1"].explained == ()
    assert (summary.findings, summary.is_complete) == (0, True)


def test_cases_that_hang_are_timeouts_that_say_they_were_run_alone_one_at_a_time() -> None:
    def hangs(task: Task) -> End:
        return late(task.timeout_s, cpu_s=44.04, wall_s=50.0) if task.key != "c1" else PASSED

    verdicts, summary, pool = swept(hangs)
    assert [[task.key for task in run] for run in pool.runs] == [["c0", "c1", "c2"], ["c0"], ["c2"]]
    assert verdicts["c0"].status is Status.TIMEOUT
    assert verdicts["c0"].symptom == (
        "no end within 15 s, nor within 45 s when run again alone (44.0 s of CPU time), in the subject"
    )
    assert (summary.statuses, summary.is_complete) == ({"pass": 1, "timeout": 2}, True)


def test_on_a_cluster_one_late_case_runs_in_each_place() -> None:
    _, summary, pool = swept(lambda task: late(task.timeout_s), count=5, places=2)
    assert [[task.key for task in run] for run in pool.runs[1:]] == [["c0", "c1"], ["c2", "c3"], ["c4"]]
    assert (summary.statuses, summary.is_complete) == ({"timeout": 5}, True)


def test_a_subject_that_hangs_on_everything_is_not_confirmed_case_by_case() -> None:
    verdicts, _, pool = swept(lambda task: late(task.timeout_s), count=CONFIRMATIONS + 3)
    assert len(pool.runs) == 1 + CONFIRMATIONS
    said = [verdict.symptom for verdict in verdicts.values()]
    assert all(verdict.status is Status.TIMEOUT for verdict in verdicts.values())
    assert ["when run again alone" in text for text in said] == [True] * CONFIRMATIONS + [False] * 3
    assert all(f"{CONFIRMATIONS} other cases of aot_eager" in text for text in said[CONFIRMATIONS:])


def test_a_case_that_ends_alone_starts_the_count_anew() -> None:
    def end_of(task: Task) -> End:
        return PASSED if task.timeout_s > 15 and task.key == "c3" else late(task.timeout_s)

    verdicts, _, pool = swept(end_of, count=CONFIRMATIONS + 4)
    assert len(pool.runs) == 1 + CONFIRMATIONS + 4
    assert verdicts["c3"].status is Status.PASS


def test_a_case_that_dies_in_its_second_attempt_is_a_crash() -> None:
    verdicts, _, _ = swept(lambda task: late(15) if task.timeout_s == 15 else CRASHED)
    assert verdicts["c0"].status is Status.CRASH
    assert "first attempt had not ended" in verdicts["c0"].explained[0]


def test_a_run_whose_time_is_over_leaves_late_cases_to_be_resumed() -> None:
    verdicts, summary, pool = swept(lambda task: late(15) if task.key == "c0" else PASSED, count=1, deadline=0.0)
    assert verdicts == {}
    assert (summary.done, summary.findings, summary.is_complete) == (0, 0, False)
    assert len(pool.runs) == 1


def test_an_interrupt_while_a_late_case_runs_again_keeps_what_has_ended() -> None:
    sink: Any = Sink()

    def end_of(task: Task) -> End:
        if task.timeout_s > 15:
            raise KeyboardInterrupt
        return late(15) if task.key == "c0" else PASSED

    cases = [PlannedCase(case_id=f"c{i}", suite="s", group="g", name=f"c{i}", subject="aot_eager") for i in range(2)]
    with pytest.raises(KeyboardInterrupt):
        executed(cases, sink, StandInPool(end_of))
    assert [record.name for record in sink.records] == ["c1"]


def test_what_hangs_while_it_is_imported_is_the_subject_and_not_the_program() -> None:
    verdict = verdict_of_end(late(60, stage=START_UP, cpu_s=0.26))
    assert verdict.status is Status.TIMEOUT
    assert verdict.symptom == "no end within 60 s (0.3 s of CPU time) while the subject was imported and warmed up"


def test_a_machine_too_busy_for_the_case_is_said() -> None:
    symptom = verdict_of_end(late(3, cpu_s=2.9, wall_s=30.0)).symptom
    assert symptom == "no end within 3 s (2.9 s of CPU time, 30.0 s on the wall of a busy machine) in the subject"
