"""The page of known bugs and the measurements behind it: made from the ledger and from runs, and refused where they mislead."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

import known_issues as tool
from oracle.known.ledger import KnownIssue, Ledger, load_ledger
from oracle.known.seen import Ending, Seen, load_seen
from oracle.known.severity import Severity
from oracle.program import Program
from oracle.verdict import Status, Verdict

NUMBER = Verdict(
    status=Status.FAIL_ACCURACY, symptom="call 0: output[0] is 22, but should be 8 (1 of 1 elements differ)"
)
PASS = Verdict(status=Status.PASS)


def issue(name: str, severity: Severity = Severity.VALUE, cause: str = "a cause", **changes: str) -> KnownIssue:
    fields = {
        "id": name, "title": f"title of {name}", "cause": cause, "severity": severity, "rung": "inductor",
        "expires": datetime.date(2027, 1, 1), "program": Program(name=name, source=""), "statuses": ("fail_accuracy",),
        "shown_by": (f"regressions/known/{name}",),
    }  # fmt: skip
    return KnownIssue(**{**fields, **changes})


def record(name: str, verdict: Verdict, subject: str = "inductor") -> tool.End:
    return f"regressions/known/{name}", subject, verdict


def test_the_committed_page_and_measurements_are_what_the_tool_writes() -> None:
    assert tool.page(load_ledger()) == tool.PAGE.read_text(encoding="utf-8")
    assert tool._one_line_a_case(load_seen(tool.SEEN)) == tool.SEEN.read_text(encoding="utf-8")


def test_a_run_replaces_what_was_measured_and_leaves_other_cases_versions_and_subjects() -> None:
    ledger = Ledger(issues=(issue("a"), issue("b")))
    old = Ending(status=Status.FAIL_STRIDE, kind="output.stride()")
    case = "regressions/known/a"
    before = Seen(
        by_torch={"2.12": {case: {"inductor": (old,)}}, "2.13": {case: {"inductor": (old,), "dynamo": (old,)}}}
    )
    rows = [record("a", NUMBER), record("b", PASS), record("no entry has it", NUMBER)]
    after = tool.measured(before, ledger, rows, torch="2.13.0+cpu", add=False)
    assert after.by_torch["2.12"] == before.by_torch["2.12"]
    assert after.by_torch["2.13"] == {
        case: {"inductor": (Ending.of(NUMBER),), "dynamo": (old,)},
        "regressions/known/b": {"inductor": (Ending(status=Status.PASS, kind=""),)},
    }


def test_several_endings_are_kept_on_request_and_each_once() -> None:
    ledger = Ledger(issues=(issue("a"),))
    seen = Seen()
    for verdict in (NUMBER, PASS, NUMBER):
        seen = tool.measured(seen, ledger, [record("a", verdict)], torch="2.13.0", add=True)
    (endings,) = seen.by_torch["2.13"]["regressions/known/a"].values()
    assert [ending.status for ending in endings] == [Status.FAIL_ACCURACY, Status.PASS]


@pytest.mark.parametrize("status", [Status.KNOWN, Status.XPASS])
def test_a_run_that_was_held_against_a_ledger_is_refused(status: Status) -> None:
    with pytest.raises(ValueError, match="--known none"):
        tool.measured(
            Seen(), Ledger(issues=(issue("a"),)), [record("a", Verdict(status=status))], torch="2.13.0", add=False
        )


@pytest.mark.parametrize("status", [Status.MISSING, Status.NOT_RUN, Status.TIMEOUT, Status.OOM])
def test_what_a_busy_machine_does_is_not_a_measurement(status: Status) -> None:
    rows = [record("a", Verdict(status=status))]
    seen = tool.measured(Seen(), Ledger(issues=(issue("a"),)), rows, torch="2.13.0", add=False)
    assert not any(seen.by_torch["2.13"].get("regressions/known/a", {}).values())


def test_lines_of_single_runs_are_measurements_of_their_version_of_torch(tmp_path: Path) -> None:
    ledger = Ledger(issues=(issue("a"), issue("b")))
    path = tmp_path / "seen.jsonl"
    lines = [
        {"id": name, "subject": subject, "torch": "2.12.0+cu130", "as_said": True, "verdict": NUMBER.to_json()}
        for name, subject in (("a", "inductor"), ("b", "aot_eager"), ("gone", "inductor"))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = Seen()
    for torch, ends in tool.lines_of(path, ledger):
        seen = tool.measured(seen, ledger, ends, torch=torch, add=False)
    # the rung of "b" is inductor now, so what another rung showed says nothing about it
    assert seen.by_torch == {"2.12": {"regressions/known/a": {"inductor": (Ending.of(NUMBER),)}}}


def test_the_page_folds_causes_and_is_sorted_by_severity() -> None:
    ledger = Ledger(
        issues=(
            issue("late", Severity.STRIDES, "strides are lost"),
            issue("first", Severity.VALUE, "an index is wrong", link="https://github.com/pytorch/pytorch/issues/1"),
            issue("alike", Severity.STRIDES, "an index is wrong"),
        )
    )
    lines = tool.page(ledger).splitlines()
    assert [line for line in lines if line.startswith("##")] == [
        "## Wrong value", "### An index is wrong", "## Strides", "### Strides are lost"
    ]  # fmt: skip
    assert "3 programs" in lines[2]
    assert "of 2 causes" in lines[2]
    assert any("([pytorch#1](https://github.com/pytorch/pytorch/issues/1))" in line for line in lines)
