"""Write JUnit XML of a run, for CI systems. Findings are failures; crashes and missing rows are errors."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from oracle.records import Record
from oracle.verdict import Status
from results.groups import FindingGroup, columns_of, group_findings
from results.queries import Cases, case_filter, count_statuses, finding_groups, planned_in
from results.render import one_line, visible
from results.schema import CASES, RECORDS
from results.store import SAME_CASE, RunInfo, Store

# There is no result to judge, which JUnit calls an error.
_ERRORS: Final = frozenset({Status.CRASH, Status.MISSING, Status.MODEL_FAIL_TO_LOAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suite:
    """The attributes of one `testsuite`."""

    suite: str
    subject: str
    statuses: Counter[Status]
    seconds: float
    started_at: str  # of the first case; "" if none was run


def junit_of_records(records: Sequence[Record], *, run_id: str, environment: Mapping[str, Any]) -> Iterator[str]:
    """The XML of records, which come from `Store.records(run, with_missing=True)`."""
    by_suite: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_suite.setdefault((record.suite, record.subject), []).append(record)
    suites = [
        _Suite(
            suite=suite,
            subject=subject,
            statuses=Counter(record.verdict.status for record in of),
            seconds=math.fsum(record.measurements.wall_s or 0.0 for record in of),
            started_at=min((record.started_at for record in of if record.started_at), default=""),
        )
        for (suite, subject), of in by_suite.items()
    ]
    groups = group_findings(columns_of(records))
    return _junit(suites, groups, lambda one: by_suite[one.suite, one.subject], run_id, environment)


def junit_of_run(store: Store, run: RunInfo, cases: Cases = "*") -> Iterator[str]:
    """The XML of a run, or of some of its cases, record by record."""
    counts: dict[tuple[str, str], Counter[Status]] = {}
    for suite, subject, status, count in count_statuses(store, run, cases):
        counts.setdefault((suite, subject), Counter())[Status(status)] = count
    keys = (CASES.c.suite, CASES.c.subject)
    started = sa.func.min(sa.case((RECORDS.c.started_at != "", RECORDS.c.started_at)))
    query = (
        sa.select(*keys, sa.func.coalesce(sa.func.sum(RECORDS.c.wall_s), 0.0), sa.func.coalesce(started, ""))
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run, cases))
        .group_by(*keys)
        .order_by(sa.func.min(CASES.c.ordinal))
    )
    with store.reading() as connection:
        suites = [
            _Suite(suite=suite, subject=subject, statuses=counts[suite, subject], seconds=seconds, started_at=first)
            for suite, subject, seconds, first in connection.execute(query)
        ]

    def records_of(one: _Suite) -> Iterable[Record]:
        of_suite = sa.and_(case_filter(cases), CASES.c.suite == one.suite, CASES.c.subject == one.subject)
        return store.records(run.run_id, with_missing=True, where=of_suite)

    return _junit(suites, finding_groups(store, run, cases), records_of, run.run_id, run.environment)


def _junit(
    suites: Sequence[_Suite],
    groups: Sequence[FindingGroup],
    records_of: Callable[[_Suite], Iterable[Record]],
    run_id: str,
    environment: Mapping[str, Any],
) -> Iterator[str]:
    """One `testsuite` per suite and subject, one `testcase` per record.

    The messages of findings of one group (results.groups) start with the same label in brackets, and the groups of a suite are
    counted in its `system-out`. A known issue is a skipped testcase, with its id. Characters that XML does not allow, that
    control a terminal or reorder text become escapes such as \\x1b (results.render).
    """
    group_of = {case_id: group for group in groups for case_id in group.case_ids}
    root = ET.Element("testsuites", name=one_line(f"torch-oracle {run_id}"))
    _set_counts(root, sum((one.statuses for one in suites), Counter()), math.fsum(one.seconds for one in suites))
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    if not suites:
        yield ET.tostring(root, encoding="unicode") + "\n"
        return
    yield _opening(root) + "\n"
    for one in suites:
        element = ET.Element("testsuite", name=one_line(f"{one.suite}@{one.subject}"))
        _set_counts(element, one.statuses, one.seconds)
        if one.started_at:
            element.set("timestamp", one_line(one.started_at))
        yield f"  {_opening(element)}\n"
        properties = ET.Element("properties")
        for key, value in environment.items():
            ET.SubElement(properties, "property", name=one_line(key), value=one_line(str(value)))
        yield _indented(properties)
        found: Counter[str] = Counter()
        for record in records_of(one):
            group = group_of.get(record.case_id)
            if group is not None:
                found[group.label] += 1
            yield _indented(_case(record, group))
        if found:
            lines = [f"{count} x {one_line(label)}" for label, count in found.most_common()]
            out = ET.Element("system-out")
            out.text = "new findings:\n" + "\n".join(lines)
            yield _indented(out)
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _opening(element: ET.Element) -> str:
    """The start tag of an element whose children follow."""
    return ET.tostring(element, encoding="unicode").removesuffix(" />") + ">"


def _indented(element: ET.Element) -> str:
    ET.indent(element, level=2)
    return f"    {ET.tostring(element, encoding='unicode')}\n"


def _case(record: Record, group: FindingGroup | None) -> ET.Element:
    verdict = record.verdict
    case = ET.Element(
        "testcase",
        classname=one_line(f"{record.suite}.{record.subject}.{record.group}"),
        name=one_line(record.name),
        time=f"{record.measurements.wall_s or 0.0:.6f}",
    )
    kind = _kind(verdict.status)
    if verdict.status is Status.XPASS:
        text = f"agrees although known issue {verdict.issue} says that it differs: its entry can go"
        ET.SubElement(case, "system-out").text = one_line(text)
    elif kind == "skipped":
        word = f"known issue {verdict.issue} ({verdict.observed})" if verdict.issue else verdict.status.value
        ET.SubElement(case, "skipped", message=one_line(f"{word}: {verdict.symptom}"))
    elif kind:
        # All cases of a group start with the same words, by which CI systems sort failures.
        label = f"[{group.label}] " if group else ""
        message = one_line(f"{label}{verdict.symptom}")
        found = ET.SubElement(case, kind.removesuffix("s"), type=verdict.status.value, message=message)
        found.text = details(record)
    return case


def _kind(status: Status) -> str:
    """The count of its suite that a status adds to, besides `tests`; "" for none."""
    if status in (Status.PASS, Status.XPASS):
        return ""
    return "skipped" if not status.is_finding else "errors" if status in _ERRORS else "failures"


def details(record: Record) -> str:
    """A finding in several lines: symptoms, worst element with both errors, traceback, repro. Escaped for printing."""
    verdict, worst = record.verdict, record.verdict.worst
    lines = [f"{verdict.status.value}: {verdict.symptom}", *(f"also: {symptom}" for symptom in verdict.also)]
    if verdict.issue:
        without = f"; {verdict.observed} without it" if verdict.observed else ""
        lines.append(f"known issue: {verdict.issue}{without} (`torch-oracle issues {verdict.issue}` shows it)")
    if verdict.stage:
        lines.append(f"stage: {verdict.stage}")
    if worst is not None:
        lines.append(f"worst element: {worst.where} at {list(worst.index)}")
        lines.append(f"  eager {worst.eager}, subject {worst.subject}, truth {worst.truth or 'unknown'}")
        lines.append(
            f"  error of eager {_number(worst.eager_error)}, of subject {_number(worst.subject_error)}, "
            f"allowed {_number(worst.allowed_error)}; {_number(worst.ulp)} ULP apart"
        )
    lines = [one_line(line) for line in lines]
    if record.traceback:
        lines.append(visible(record.traceback))
    if record.repro:
        lines.append(one_line(f"repro: {record.repro}"))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"


def _set_counts(element: ET.Element, statuses: Counter[Status], seconds: float) -> None:
    element.set("tests", str(statuses.total()))
    for kind in ("failures", "errors", "skipped"):
        element.set(kind, str(sum(count for status, count in statuses.items() if _kind(status) == kind)))
    element.set("time", f"{seconds:.6f}")
