"""The first page of the report in words and numbers: what is new, what to do next, the matrix of suites and subjects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import quote, urlencode

from oracle.verdict import Status
from results.changes import ChangeKind
from results.engine import Location
from results.html.contents import FASTER, FLAKY, SLOWER, Contents, Group
from results.ladder import rung_of
from results.outcomes import outcome_of
from results.render import number, one_line, ratio, seconds, shorten
from results.report import run_line
from results.store import PLANNING, RunInfo

_STEPS_SHOWN: Final = 8
_BIAS_SHOWN: Final = 20
_OUTCOMES: Final = {  # in the order of a cell of the matrix
    "new": "new",
    "known": "known",
    "not_compared": "not compared",
    "not_run": "not run",
    "passed": "pass",
}
_TONES: Final = {"new": "bad", "known": "warn"}


def summary_of(contents: Contents) -> dict[str, Any]:
    """The values that the template shows: text that is escaped for display (results.render), and links within the page."""
    head, base, comparison = contents.head, contents.base, contents.comparison
    tone, headline, subline = _headline(contents)
    steps = _steps(contents)
    shown = steps[:_STEPS_SHOWN]
    changes = comparison.environment if comparison else ()
    return {
        "title": f"torch-oracle: {headline}",
        "tone": tone,
        "headline": headline,
        "subline": subline,
        "head_line": f"This run: {run_line(head.run)}",
        "base_line": f"Compared with {_short_line(base.run)}" if base else "",
        "notes": _notes(contents),
        "tiles": _tiles(contents),
        "groups": len(contents.groups),
        "cases": head.cases,
        "steps": shown,
        "steps_note": _steps_note(contents, shown),
        "steps_left": len(contents.groups) - sum("group" in step for step in shown),
        "matrix": _matrix(contents),
        "environment_changes": [(one_line(key), shorten(old, 400), shorten(new, 400)) for key, old, new in changes],
        "environment": _leaves(head.run.environment),
        "arguments": _leaves(head.run.arguments),
        "bias": _bias(contents),
        **_speed(contents),
        "footer": f"Written by torch-oracle on {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC from "
        f"{one_line(str(Location.parse(head.place)))}. The file is complete: it loads nothing and sends nothing.",
    }


def cases_link(**filters: str | int) -> str:
    """A link to the list of cases with these filters."""
    return "#/cases?" + urlencode(filters, quote_via=quote)


def case_link(case_id: str) -> str:
    """A link to the page of a case."""
    return "#/case/" + quote(one_line(case_id), safe="")


def _count(value: int, word: str) -> str:
    return f"{value:,} {word}{'' if value == 1 else 's'}".replace(",", " ")


def _short_line(run: RunInfo) -> str:
    done = f"{run.recorded} of {run.planned} cases"
    return one_line(f"run {run.run_id} ({run.state}, {done}, {run.started_at})")


# ----------------------------------------------------------------------------------------------------------- headline


def _headline(contents: Contents) -> tuple[str, str, str]:
    """Tone, headline and a second line."""
    findings = sum(group.finding.cases for group in contents.groups)
    if not contents.head.cases:
        return "warn", "The run has no cases", "Its selection matched no program, or it died before it planned any."
    if contents.comparison is None:
        if not findings:
            known = contents.statuses.get(Status.KNOWN.value, 0)
            said = f"{_count(known, 'case')} differ as known issues say. " if known else ""
            return "good", "No failures", f"{said}There is no earlier run to compare with."
        said = f"{_count(findings, 'failing case')} in {_count(len(contents.groups), 'group')}"
        return "bad", said, "There is no earlier run to compare with, so every failure counts."
    new, lost = contents.changed(ChangeKind.NEW_FAILURE), _lost(contents)
    slower, flaky = contents.flagged(SLOWER), contents.flagged(FLAKY)
    counts = (
        (contents.changed(ChangeKind.FIXED), "fixed"),
        (flaky, "flaky"),
        (slower, "slower"),
        (contents.changed(ChangeKind.STILL_FAILING), "failing as before"),
    )
    said = ", ".join(f"{_count(value, 'case')} {word}" for value, word in counts if value)
    said = f"{said}." if said else ""
    if new:
        groups = sum(group.is_new for group in contents.groups)
        and_lost = f", and {_count(lost, 'case')} without a result" if lost else ""
        return "bad", f"{_count(new, 'new failure')} in {_count(groups, 'group')}{and_lost}", said
    if lost:
        return "bad", f"No new failures, but {_count(lost, 'case')} without a result", said
    # Green is for a run in which nothing fails; what fails as before is neither good nor news.
    tone = "warn" if slower or flaky else "" if findings else "good"
    return tone, "No new failures", said


def _lost(contents: Contents) -> int:
    return contents.changed(ChangeKind.MISSING_ROW) + contents.changed(ChangeKind.NO_LONGER_COMPARED)


def _notes(contents: Contents) -> list[str]:
    notes = []
    run = contents.head.run
    if run.state == PLANNING:
        notes.append("The run died while its cases were planned, so cases may be absent without a trace.")
    elif not run.is_complete:
        left = _count(run.planned - run.recorded, "planned case")
        notes.append(f"The run is {run.state}: {left} did not run. `torch-oracle sweep --resume` continues it.")
    left = contents.rows_in_all - len(contents.rows)
    if left:
        notes.append(
            f"This page counts all {_count(contents.rows_in_all, 'case')}. Lists and case pages have "
            f"{_count(len(contents.rows), 'row')}: new failures first, then other failures. "
            f"{_count(left, 'case')} are left out; `torch-oracle show` prints them, and the option --rows takes more."
        )
    return notes


def _tiles(contents: Contents) -> list[dict[str, Any]]:
    tiles: list[dict[str, Any]] = []

    def tile(label: str, value: int, tone: str, link: str, note: str = "") -> None:
        tiles.append({"label": label, "value": value, "tone": tone, "link": link, "note": note})

    outcomes: Counter[str] = Counter()
    for status, count in contents.statuses.items():
        outcomes[outcome_of(Status(status))] += count
    changed = contents.changed
    if contents.comparison is not None:
        groups = _count(sum(group.is_new for group in contents.groups), "group")
        tile("new failures", changed(ChangeKind.NEW_FAILURE), "bad", _of_kind(ChangeKind.NEW_FAILURE), f"in {groups}")
        tile("no result", _lost(contents), "bad", cases_link(change="lost"), "they had one before")
        tile("fixed", changed(ChangeKind.FIXED), "good", _of_kind(ChangeKind.FIXED))
        tile("fail differently", changed(ChangeKind.CHANGED_SYMPTOM), "warn", _of_kind(ChangeKind.CHANGED_SYMPTOM))
        tile("failing as before", changed(ChangeKind.STILL_FAILING), "", _of_kind(ChangeKind.STILL_FAILING))
    else:
        groups = _count(len(contents.groups), "group")
        tile("failing", outcomes["new"], "bad", cases_link(outcome="new"), f"in {groups}")
        tile("not compared", outcomes["not_compared"], "warn", cases_link(outcome="not_compared"))
    runs = _count(len(contents.history.runs), "run")
    tile("flaky", contents.flagged(FLAKY), "warn", cases_link(flag="flaky"), f"in {runs}")
    if contents.comparison is not None:
        faster = f"{_count(contents.flagged(FASTER), 'case')} faster"
        tile("slower", contents.flagged(SLOWER), "warn", cases_link(flag="slower"), faster)
    tile("known issues", outcomes["known"], "", cases_link(outcome="known"), "as the ledger says")
    of_all = f"of {_count(contents.head.cases, 'case')}"
    tile("pass", outcomes["passed"], "good", cases_link(outcome="passed"), of_all)
    return tiles


def _of_kind(kind: ChangeKind) -> str:
    return cases_link(change=kind.value)


# -------------------------------------------------------------------------------------------------------------- steps


def _steps(contents: Contents) -> list[dict[str, Any]]:
    """The entries to look at, the most urgent first: new failures, or all if there is no earlier run; then other changes."""
    has_base = contents.comparison is not None
    steps = [_group_step(group, is_bad=True) for group in contents.groups if group.is_new or not has_base]
    others: list[dict[str, Any]] = []

    def step(badge: str, tone: str, title: str, link: str, text: str) -> None:
        others.append({"badge": badge, "tone": tone, "title": title, "link": link, "text": text, "counts": ()})

    if lost := _lost(contents):
        title = f"{_count(lost, 'case')} without a result"
        text = "They had one in the earlier run. `torch-oracle sweep --resume` finishes a stopped run."
        step("no result", "bad", title, cases_link(change="lost"), text)
    if slower := (contents.comparison.slower if contents.comparison else ()):
        worst = slower[0]
        title = f"{_count(len(slower), 'case')} slower than in the earlier run"
        before, now = ratio(worst.base.value), ratio(worst.head.value)
        text = f"Most of all {one_line(worst.case_id)}: {before} over eager before, {now} now."
        step("slower", "warn", title, cases_link(flag="slower"), text)
    if flaky := contents.flagged(FLAKY):
        title = f"{_count(flaky, 'case')} not the same from run to run"
        text = "One seed always gives one verdict, so this is a bug: of the subject, or of torch-oracle."
        step("flaky", "warn", title, cases_link(flag="flaky"), text)
    if agree := contents.statuses.get(Status.XPASS.value, 0):
        title = f"{_count(agree, 'case')} of known issues agree now"
        step("fixed", "good", title, cases_link(status=Status.XPASS.value), "Their entries of the ledger can go.")
    # The other changes keep a place on the first screen, behind the first groups.
    keep = max(1, _STEPS_SHOWN - len(others))
    found = [*steps[:keep], *others, *steps[keep:]]
    return found or [_group_step(group, is_bad=False) for group in contents.groups[:_STEPS_SHOWN]]


def _steps_note(contents: Contents, steps: Sequence[Mapping[str, Any]]) -> str:
    is_old = contents.comparison is not None and not any(group.is_new for group in contents.groups)
    if is_old and steps and "group" in steps[0]:
        return "Nothing is new. What fails as before, the most severe first:"
    return ""


def _group_step(group: Group, *, is_bad: bool) -> dict[str, Any]:
    finding = group.finding
    counts = [(_count(finding.cases, "case"), cases_link(finding=group.number))]
    if 0 < group.new < finding.cases:
        new = cases_link(finding=group.number, change=ChangeKind.NEW_FAILURE.value)
        counts.append((f"{group.new:,} new".replace(",", " "), new))
    return {
        "group": group.number,
        "badge": finding.severity.value if finding.severity else finding.status,
        "tone": "bad" if is_bad else "",
        "title": shorten(f"{finding.what or finding.status}: {finding.status} on {finding.subjects[0]}", 140),
        "link": cases_link(finding=group.number),
        "counts": counts,
        "text": shorten(finding.symptom, 300),
        "example": shorten(finding.example),
        "example_link": case_link(finding.example),
    }


# ------------------------------------------------------------------------------------------------------------- tables


def _matrix(contents: Contents) -> dict[str, Any]:
    """Suites as rows, subjects as columns in the order of the compiler's stages."""
    cells = {(row["suite"], row["subject"]): _cell(row) for row in contents.rates.to_dict("records")}
    subjects = sorted({subject for _, subject in cells}, key=_subject_order)
    rows = [
        {
            "suite": one_line(suite),
            "link": cases_link(suite=one_line(suite)),
            "cells": [cells.get((suite, subject)) for subject in subjects],
        }
        for suite in dict.fromkeys(suite for suite, _ in cells)
    ]
    return {"subjects": [one_line(subject) for subject in subjects], "rows": rows}


def _cell(row: Mapping[str, Any]) -> dict[str, Any]:
    suite, subject = one_line(row["suite"]), one_line(row["subject"])
    parts = [
        {
            "label": label,
            "value": int(row[outcome]),
            "tone": _TONES.get(outcome, ""),
            "link": cases_link(suite=suite, subject=subject, outcome=outcome),
        }
        for outcome, label in _OUTCOMES.items()
        if row[outcome]
    ]
    said = f"{row['passed']} of {row['comparable']} compared cases pass; {row['cases']} cases"
    return {
        "rate": _percent(row["passed"], row["comparable"]),
        "link": cases_link(suite=suite, subject=subject),
        "title": f"{suite} on {subject}: {said}",
        "tone": "bad" if row["new"] else "warn" if row["known"] or not row["comparable"] else "good",
        "parts": parts,
    }


def _subject_order(subject: str) -> tuple[bool, int, str]:
    rung = rung_of(subject)
    return rung is None, rung or 0, subject


def _percent(passed: int, comparable: int) -> str:
    if not comparable:
        return "–"
    # 99.96 must not be rounded to 100, which means that nothing failed.
    return "100 %" if passed == comparable else f"{min(100 * passed / comparable, 99.9):.1f} %"


def _bias(contents: Contents) -> list[dict[str, Any]]:
    return [
        {
            "subject": one_line(one.subject),
            "text": one_line(one.text),
            "link": cases_link(suite=one_line(one.suite), group=one_line(one.group), subject=one_line(one.subject)),
            "advisory": one.is_advisory,
            "mean": f"{one.bias.subject_mean:+.2f}",
            "limit": f"{one.limit:.2f}",
        }
        for one in contents.bias[:_BIAS_SHOWN]
    ]


_SPEED_COLUMNS: Final = (
    *("timed", "speedup", "slower than eager", "compile cold", "compile warm"),
    *("memory", "graph breaks", "recompiles"),
)


def _speed(contents: Contents) -> dict[str, Any]:
    rows = []
    for row in contents.speed.to_dict("records"):
        suite, subject = one_line(row["suite"]), one_line(row["subject"])
        link = cases_link(suite=suite, subject=subject, timed="all", sort="speedup")
        cells = (
            (str(row["timed"]), link),
            (ratio(row["speedup"], row["speedup_low"], row["speedup_high"]), ""),
            (str(row["slower"]), cases_link(suite=suite, subject=subject, timed="slower", sort="speedup")),
            (seconds(row["compile_cold_s"]), ""),
            (seconds(row["compile_warm_s"]), ""),
            (ratio(row["compression_ratio"]), ""),
            (str(row["graph_breaks"]), cases_link(suite=suite, subject=subject, status="pass", sort="-graph_breaks")),
            (str(row["recompiles"]), cases_link(suite=suite, subject=subject, status="pass", sort="-recompiles")),
        )
        rows.append({"suite": suite, "subject": subject, "link": link, "cells": cells})
    line = ""
    comparison = contents.comparison
    if comparison is not None and comparison.timed_in_both:
        line = (
            f"Over the {_count(comparison.timed_in_both, 'case')} timed in both runs, the speedup over eager is now "
            f"{number(comparison.speed_change)}x that of the earlier run (sign test p = {comparison.speed_change_p:.2g})."
        )
    return {"speed_columns": _SPEED_COLUMNS, "speed_rows": rows, "speed_line": line}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested mappings as (dotted name, text) pairs."""
    found: list[tuple[str, str]] = []
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            found.append((one_line(f"{prefix}{key}"), shorten(text, 600)))
    return found
