"""The last lines of a sweep say its result, where the records are, and which commands to use next."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from suites.end_report import End, EndReport, duration_text, own_command

CASE = "opinfo/add/float32/forward/sample-0@inductor[mode=max-autotune]"


def report(**fields: Any) -> EndReport:
    defaults: dict[str, Any] = {
        "end": End.COMPLETE, "run_id": "run-1", "db": "torch-oracle.db", "is_default_db": True, "planned": 1276,
        "statuses": {"pass": 1276}, "seconds": 252.0, "time_limit_s": None, "first_finding": "", "subjects_are_own": True,
    }  # fmt: skip
    return EndReport(**{**defaults, **fields})


def commands(lines: list[str]) -> list[list[str]]:
    """The words of each command shown, without the program's own."""
    own = own_command()
    return [shlex.split(line.strip().removeprefix(own)) for line in lines if line.startswith(f"  {own}")]


def test_nothing_new_ends_without_an_exit_code_and_with_known_issues_apart() -> None:
    done = report(statuses={"pass": 1000, "known": 275, "xpass": 1})
    lines = done.lines()
    assert done.exit_code == 0
    assert lines[0] == (
        "all 1,276 cases have run, in 4 min 12 s: 0 new findings, 275 cases with a known issue,"
        " 1 case whose known issue did not show (xpass)"
    )
    assert lines[1] == "results: run run-1 in torch-oracle.db"
    assert ["issues"] in commands(lines)
    assert not any("exit code" in line for line in lines)


def test_a_finding_is_shown_by_a_command_that_a_shell_takes_and_the_exit_code_is_explained() -> None:
    done = report(
        statuses={"pass": 1275, "fail_accuracy": 1}, first_finding=CASE, db="/tmp/my runs.db", is_default_db=False
    )
    lines = done.lines()
    assert done.exit_code == 1
    assert commands(lines)[:2] == [
        ["show", CASE, "--db", "/tmp/my runs.db"],
        ["repro", f"run-1:{CASE}", "--db", "/tmp/my runs.db"],
    ]
    assert lines[-1].startswith("exit code 1 (")
    assert "1: new findings" in lines[-1]


@pytest.mark.parametrize("end", [End.INTERRUPTED, End.OUT_OF_TIME])
def test_a_stopped_run_counts_what_ran_and_names_the_command_that_goes_on_first(end: End) -> None:
    done = report(end=end, statuses={"pass": 12}, db="x.db", is_default_db=False, time_limit_s=90.0)
    lines = done.lines()
    assert "12 of 1,276 cases have run" in lines[0]
    assert commands(lines)[0] == ["sweep", "--resume", "--db", "x.db"]
    assert any("the other 1,264 cases, for 1 min 30 s at most" in line for line in lines)


@pytest.mark.parametrize(
    ("end", "statuses", "errors", "code"),
    [
        (End.COMPLETE, {"pass": 1, "eager_fail_to_run": 1}, (), 0),
        (End.COMPLETE, {"missing": 1}, (), 1),
        (End.COMPLETE, {"fail_grad": 1}, ("boom",), 3),
        (End.OUT_OF_TIME, {"pass": 1}, (), 0),
        (End.OUT_OF_TIME, {"crash": 1}, (), 1),
        (End.INTERRUPTED, {"pass": 1}, (), 2),
        (End.INTERRUPTED, {"crash": 1}, (), 2),
    ],
)
def test_exit_codes(end: End, statuses: dict[str, int], errors: tuple[str, ...], code: int) -> None:
    assert report(end=end, statuses=statuses, internal_errors=errors).exit_code == code


def test_known_issues_are_listed_of_the_ledgers_that_the_run_used() -> None:
    assert ["issues"] in commands(report(statuses={"known": 1}).lines())
    own = report(statuses={"known": 1}, known="torch,/there/known.toml").lines()
    assert ["issues", "--known", "torch,/there/known.toml"] in commands(own)


def test_at_most_three_commands_are_shown_and_a_backend_of_ones_own_gets_the_same_programs() -> None:
    statuses = {"fail_grad": 3, "known": 4}
    many = report(end=End.INTERRUPTED, statuses=statuses, first_finding=CASE, selection=("--suite", "opinfo"))
    assert len(commands(many.lines())) == 3
    mine = report(selection=("--suite", "opinfo", "--match", "a*"))
    assert ["sweep", "--suite", "opinfo", "--match", "a*", "--subject", "my_package.my_module:my_backend"] in commands(
        mine.lines()
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (59.6, "1 min"), (252, "4 min 12 s"), (3600, "1 h"), (5400, "1 h 30 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
