"""The gate: open only for exactly the accepted failures, strict both ways; and the baseline file it reads."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.records import Record
from oracle.verdict import Status
from results.baseline import AcceptedFailure, read_baseline, updated_baseline, write_baseline
from results.gate import PROBLEMS_SHOWN, Cases, GateReport, ProblemKind, failing, gate, tables_of
from results.render import plain
from results.store import RunInfo
from results.tests import fabricate

TODAY = date(2026, 6, 15)
CASE = fabricate.case()


def run_info(records: list[Record], state: str = "complete") -> RunInfo:
    return RunInfo(
        run_id="run-1",
        state=state,
        started_at="",
        ended_at=None,
        environment={},
        arguments={},
        planned=len(records),
        recorded=sum(record.verdict.status is not Status.MISSING for record in records),
    )


def accepted(status: Status = Status.FAIL_ACCURACY, **changes) -> AcceptedFailure:
    entry = AcceptedFailure(
        case_id=CASE.case_id,
        status=status,
        reason="rounding of libm",
        link="https://example.org/1",
        expires=date(2026, 12, 31),
        line=7,
    )
    return replace(entry, **changes)


def gated(
    records: list[Record], *entries: AcceptedFailure, state: str = "complete", most: int | None = None
) -> GateReport:
    baseline = {entry.case_id: entry for entry in entries}
    return gate(Cases.of(records), baseline, run=run_info(records, state), today=TODAY, most=most)


def kinds(report: GateReport) -> list[ProblemKind]:
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
def test_without_a_baseline_the_gate_is_closed_by_the_findings_and_by_cases_without_a_record(status: Status):
    report = gated([fabricate.record(CASE, status)])
    special = {Status.MISSING: [ProblemKind.MISSING], Status.NOT_RUN: [ProblemKind.INCOMPLETE]}
    expected = special.get(status, [ProblemKind.NEW] if status.is_finding else [])
    assert expected == kinds(report)
    assert report.is_open is not bool(expected)


def test_an_accepted_failure_opens_the_gate():
    report = gated([fabricate.record(CASE, Status.FAIL_ACCURACY)], accepted())
    assert report.is_open
    assert report.accepted == 1


@pytest.mark.parametrize(
    ("status", "entry", "expected"),
    [
        (Status.PASS, accepted(), ProblemKind.XPASS),
        (Status.FAIL_GRAD, accepted(), ProblemKind.CHANGED),
        (Status.CRASH, accepted(), ProblemKind.CHANGED),
        (Status.PASS_DUE_TO_SKIP, accepted(), ProblemKind.NOT_COMPARED),
        (Status.EAGER_FAIL_TO_RUN, accepted(), ProblemKind.NOT_COMPARED),
        (Status.MISSING, accepted(), ProblemKind.MISSING),
        (Status.XPASS, accepted(), ProblemKind.XPASS),
        (Status.KNOWN, accepted(), ProblemKind.KNOWN),
        (Status.FAIL_ACCURACY, accepted(expires=date(2026, 6, 14)), ProblemKind.EXPIRED),
        (Status.FAIL_ACCURACY, accepted(case_id="opinfo/renamed@inductor"), ProblemKind.NEW),
    ],
)
def test_an_acceptance_that_does_not_hold_exactly_closes_the_gate(
    status: Status, entry: AcceptedFailure, expected: ProblemKind
):
    assert expected in kinds(gated([fabricate.record(CASE, status)], entry))


def test_an_acceptance_holds_through_its_last_day_and_for_ever_if_it_says_so():
    record = fabricate.record(CASE, Status.FAIL_ACCURACY)
    assert gated([record], accepted(expires=TODAY)).is_open
    assert gated([record], accepted(expires=None)).is_open


def test_a_budget_that_could_not_be_judged_names_the_option_that_measures_more():
    report = replace(gated([fabricate.record(CASE)]), timed=7, undecided=6)
    note = plain(tables_of(report)[0])
    assert "6 of them not well enough to tell whether they became slower (sweep --speed --speed-precision 2" in note


def test_an_accepted_case_that_is_not_planned_closes_the_gate():
    report = gated([fabricate.record(fabricate.case("other/f"))], accepted())
    assert kinds(report) == [ProblemKind.UNKNOWN]
    assert report.problems[0].line == 7
    assert "name the right run with --run" in tables_of(report)[0].note  # none of the accepted cases is in the run


def test_a_run_that_planned_nothing_or_died_planning_closes_the_gate():
    assert kinds(gated([])) == [ProblemKind.INCOMPLETE]
    assert kinds(gated([fabricate.record(CASE)], state="planning")) == [ProblemKind.INCOMPLETE]


def test_a_line_of_a_case_that_is_a_known_issue_now_is_named_with_the_issue():
    (problem,) = gated([fabricate.record(CASE, Status.KNOWN)], accepted()).problems
    assert problem.message == "known as made-up-issue: the line can go (accepted as fail_accuracy)"
    assert problem.line == 7


def test_known_issues_leave_the_gate_open_and_those_that_are_gone_are_told():
    records = [fabricate.record(fabricate.case(f"{s.value}/f"), s) for s in (Status.KNOWN, Status.XPASS)]
    report = gated(records)
    assert report.is_open
    assert (report.known, report.gone) == (1, (records[1].case_id,))
    note = plain(tables_of(report)[0])
    assert "1 differ as known issues say" in note
    assert f"its entry can go: {records[1].case_id}" in note


def test_a_run_that_was_stopped_closes_the_gate_once_and_says_how_to_finish_it():
    records = [fabricate.record(fabricate.case(f"op{i}/f"), Status.NOT_RUN) for i in range(50)]
    records.append(fabricate.record(CASE, Status.NOT_RUN))
    report = gated(records, accepted(), state="interrupted")
    (problem,) = report.problems
    assert problem.kind is ProblemKind.INCOMPLETE
    assert "stopped before 51 of its 51 cases had run" in problem.message
    assert "sweep --resume" in problem.message
    assert report.accepted == 0  # nobody knows whether the line of a case that has not run still holds
    assert kinds(gated(records, state="planning")) == [ProblemKind.INCOMPLETE]


def test_the_report_names_kind_case_and_line_in_text_and_json():
    report = gated([fabricate.record(CASE, Status.PASS)], accepted())
    (table,) = tables_of(report)
    assert "accepted, but passes now" in plain(table)
    assert CASE.case_id in plain(table)
    data = json.loads(json.dumps(report.to_json()))
    assert (data["is_open"], data["problems"][0]["line"]) == (False, 7)


# ------------------------------------------------------------------------------------------------------ the baseline


def test_a_baseline_comes_back_as_written_sorted_with_line_numbers(tmp_path: Path):
    path = tmp_path / "accepted.txt"
    entries = [
        accepted(),
        accepted(Status.CRASH, case_id="opinfo/a b/λ@x[mode=1]", link="", expires=None, line=0),
    ]
    write_baseline(path, entries)
    read = read_baseline(path)
    assert list(read) == sorted(entry.case_id for entry in entries)
    assert [replace(entry, line=0) for entry in read.values()] == [
        replace(entry, line=0) for entry in reversed(entries)
    ]
    lines = path.read_text().splitlines()
    assert all(lines[entry.line - 1].startswith(entry.case_id) for entry in read.values())


GOOD = "opinfo/add@inductor | fail_accuracy | why | - | expires 2026-12-31"


@pytest.mark.parametrize(
    ("text", "line", "seen"),
    [
        ("opinfo/add@inductor | fail_accuracy | why | -", 1, "4 fields"),
        (GOOD + " | more", 1, "6 fields"),
        ("# fine\n\n" + GOOD.replace("fail_accuracy", "fails"), 3, "status 'fails'"),
        (GOOD.replace("fail_accuracy", "pass"), 1, "cannot be accepted"),
        (GOOD.replace("fail_accuracy", "missing"), 1, "cannot be accepted"),
        (GOOD.replace("2026-12-31", "2026-02-30"), 1, "expires 2026-02-30"),
        (GOOD.replace("2026-12-31", "20261231"), 1, "expires 20261231"),
        (GOOD.replace("expires 2026-12-31", "2026-12-31"), 1, "'2026-12-31'"),
        (GOOD.replace("why", " "), 1, "empty case id or reason"),
        (GOOD.replace("| - |", "|  |"), 1, "empty link"),
        (GOOD + "\n" + GOOD, 2, "a second time (first on line 1)"),
        (GOOD + "\n" + GOOD.replace("add", "abs"), 2, "after opinfo/add@inductor"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named_by_its_number(tmp_path: Path, text: str, line: int, seen: str):
    path = tmp_path / "accepted.txt"
    path.write_text(text + "\n")
    with pytest.raises(UsageError) as caught:
        read_baseline(path)
    assert caught.value.seen.startswith(f"{path}, line {line}: ")
    assert seen in caught.value.seen


def test_a_good_line_is_read_with_either_line_end_and_after_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "accepted.txt"
    for mark, end in (("", "\n"), ("", "\r\n"), ("\ufeff", "\r\n")):
        path.write_bytes((mark + GOOD + end).encode())
        (entry,) = read_baseline(path).values()
        assert (entry.link, entry.expires) == ("", date(2026, 12, 31))


def test_an_absent_or_binary_baseline_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="--update"):
        read_baseline(tmp_path / "absent.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_baseline(tmp_path / "binary")


HOSTILE_IDS = (
    "a | b", "|", "two\nlines", "cr\r", "\r\n", "tab\t", "\0", "\ud800 alone", "\u2028", "\x85", "# comment", " space ", "",
    '"', '"a"', '"\\u007c"', "back\\slash", "\\n", "plain/f@inductor[mode=x]", "ünïcode", "\N{RIGHT-TO-LEFT OVERRIDE}", "'",
    "a |", "| a", "a|b",
)  # fmt: skip


@pytest.mark.parametrize("case_id", HOSTILE_IDS)
def test_every_case_id_is_read_as_it_was_written(tmp_path: Path, case_id: str):
    path = tmp_path / "accepted.txt"
    write_baseline(path, [accepted(case_id=case_id)])
    (entry,) = read_baseline(path).values()
    assert replace(entry, line=7) == accepted(case_id=case_id)


def test_all_hostile_ids_fit_in_one_sorted_baseline_and_plain_ones_are_as_they_were(tmp_path: Path):
    path = tmp_path / "accepted.txt"
    write_baseline(path, [accepted(case_id=case_id) for case_id in HOSTILE_IDS])
    assert list(read_baseline(path)) == sorted(HOSTILE_IDS)
    plain = ("back\\slash", "\\n", "plain/f@inductor[mode=x]", "ünïcode", "'")
    assert all(f"\n{case_id} | " in path.read_text(encoding="utf-8") for case_id in plain)


@pytest.mark.parametrize("field", ['"', '"a', '"a" b', '"\\x"'])
def test_an_id_in_quotation_marks_that_is_no_json_is_named(tmp_path: Path, field: str):
    path = tmp_path / "accepted.txt"
    path.write_text(GOOD.replace(GOOD.split(" | ")[0], field) + "\n")
    with pytest.raises(UsageError, match="line 1: case id"):
        read_baseline(path)


@pytest.mark.parametrize("reason", ["two\nlines", "x\ry", "x |", "a | b", " x"])
def test_a_reason_that_a_line_cannot_hold_is_refused_and_the_file_left_alone(tmp_path: Path, reason: str):
    path = tmp_path / "accepted.txt"
    path.write_text("as it was")
    with pytest.raises(UsageError, match="cannot hold"):
        write_baseline(path, [replace(accepted(), reason=reason)])
    assert path.read_text() == "as it was"


def test_update_keeps_what_holds_and_adds_the_rest_as_unreviewed(tmp_path: Path):
    names = ("holds", "changed", "fixed", "new")
    statuses = (Status.FAIL_ACCURACY, Status.CRASH, Status.PASS, Status.FAIL_ALIAS)
    cases = {name: fabricate.case(f"{name}/f") for name in names}
    records = [fabricate.record(cases[name], status) for name, status in zip(names, statuses, strict=True)]
    old = {
        cases[name].case_id: accepted(case_id=cases[name].case_id, expires=None)
        for name in ("holds", "changed", "fixed")
    }
    updated = {
        entry.case_id: entry for entry in updated_baseline(old, failing(Cases.of(records)), expires=date(2026, 7, 15))
    }
    assert list(updated) == [cases[name].case_id for name in ("holds", "changed", "new")]
    assert updated[cases["holds"].case_id] == old[cases["holds"].case_id]
    changed, new = updated[cases["changed"].case_id], updated[cases["new"].case_id]
    assert (changed.status, changed.reason, changed.link) == (Status.CRASH, "unreviewed", "https://example.org/1")
    assert (new.status, new.reason, new.expires) == (Status.FAIL_ALIAS, "unreviewed", date(2026, 7, 15))
    report = gate(Cases.of(records), updated, run=run_info(records), today=TODAY)
    assert report.is_open
    assert (report.accepted, report.unreviewed) == (3, 2)


def test_of_very_many_problems_the_first_are_shown_and_all_are_counted():
    records = [fabricate.record(fabricate.case(f"op/float32/{i}"), Status.CRASH) for i in range(PROBLEMS_SHOWN + 5)]
    report = gated(records)
    (table,) = tables_of(report)
    assert len(table.rows) == PROBLEMS_SHOWN
    assert table.title == f"gate: closed ({len(records)})"
    assert "and 5 more (--json has all)" in table.note
    assert len(report.to_json()["problems"]) == len(records)


def test_a_report_that_names_few_problems_of_a_kind_counts_all_and_is_shown_alike():
    records = [fabricate.record(fabricate.case(f"op/float32/{i}"), Status.CRASH) for i in range(PROBLEMS_SHOWN + 5)]
    whole, short = gated(records), gated(records, most=PROBLEMS_SHOWN)
    assert len(short.problems) == PROBLEMS_SHOWN
    assert (short.count, short.exit_code) == (whole.count, whole.exit_code) == (len(records), 1)
    assert tables_of(short) == tables_of(whole)
