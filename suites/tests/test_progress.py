"""Progress without a terminal: plain lines that tell news apart from known issues."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from oracle.records import PlannedCase, Record
from oracle.sweep import SweepSummary
from oracle.verdict import Status, Verdict
from suites import progress as module
from suites.progress import PlanningProgress, SweepProgress


def record(status: Status, symptom: str = "") -> Record:
    case = PlannedCase(case_id="opinfo/add@inductor", suite="opinfo", group="add", name="add", subject="inductor")
    return Record.of(case, run_id="run", verdict=Verdict(status=status, symptom=symptom))


def console() -> Console:
    return Console(file=io.StringIO(), width=400)


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_news_are_told_one_by_one_and_known_issues_counted_apart() -> None:
    out = console()
    summary = SweepSummary(planned=3, done=3, statuses={"known": 2, "fail_grad": 1}, internal_errors=[])
    with SweepProgress(total=3, console=out) as progress:
        progress.update(record(Status.FAIL_GRAD, "grad is 1\x1b[31m, but should be 2"), summary)
    lines = text(out).splitlines()
    assert lines[0] == "fail_grad              opinfo/add@inductor  grad is 1\\x1b[31m, but should be 2"
    assert lines[1].startswith("3/3 cases")
    assert lines[1].endswith("1 new findings, 2 known")


def test_a_known_issue_is_no_line_of_its_own() -> None:
    out = console()
    with SweepProgress(total=9, console=out) as progress:
        progress.update(
            record(Status.KNOWN, "differs"), SweepSummary(planned=9, done=1, statuses={"known": 1}, internal_errors=[])
        )
    assert text(out) == ""


def test_further_cases_do_not_make_the_rate_that_of_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    out = console()
    with SweepProgress(total=10, console=out) as progress:
        for planned, done, at in ((10, 10, 10.0), (11, 11, 11.0)):
            now[0] = at
            progress.update(
                record(Status.PASS), SweepSummary(planned=planned, done=done, statuses={}, internal_errors=[])
            )
    assert re.findall(r"([\d.]+)/s", text(out)) == ["1.0", "1.0"]


def test_planning_that_takes_long_is_told_and_its_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    out = console()
    with PlanningProgress(console=out) as progress:
        for done, at in ((1, 1.0), (30, 20.0), (40, 40.0)):
            now[0] = at
            progress.update(done, 40, done * 2, "opinfo")
    assert text(out).splitlines() == ["30/40 parts of the plan, 1.5/s, 7 s left, 60 programs"]
