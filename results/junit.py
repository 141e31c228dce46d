"""Write JUnit XML of a run, for CI systems. Findings are failures; crashes and missing rows are errors."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oracle.records import Record
from oracle.verdict import Status
from results.groups import FindingGroup, group_findings
from results.render import one_line, visible
from results.tables import frame

# There is no result to judge, which JUnit calls an error.
_ERRORS: Final = frozenset({Status.CRASH, Status.MISSING, Status.MODEL_FAIL_TO_LOAD})


def junit_xml(records: Iterable[Record], *, run_id: str, environment: Mapping[str, Any]) -> str:
    """One `testsuite` per suite and subject, one `testcase` per record.

    The messages of findings of one group (results.groups) start with the same label in brackets, and the groups of a suite are
    counted in its `system-out`. A known issue is a skipped testcase, with its id.

    `records` come from `Store.records(run, with_missing=True)`. Characters that XML does not allow, that control a terminal or
    reorder text become escapes such as \\x1b (results.render).
    """
    records = list(records)
    suites: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        suites.setdefault((record.suite, record.subject), []).append(record)
    groups = group_findings(frame(records))
    group_of = {case_id: group for group in groups for case_id in group.case_ids}
    root = ET.Element("testsuites", name=one_line(f"torch-oracle {run_id}"))
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0, "time": 0.0}
    for (suite, subject), of_subject in suites.items():
        element = ET.SubElement(root, "testsuite", name=one_line(f"{suite}@{subject}"))
        counts = dict.fromkeys(totals, 0.0)
        properties = ET.SubElement(element, "properties")
        for key, value in environment.items():
            ET.SubElement(properties, "property", name=one_line(key), value=one_line(str(value)))
        for record in of_subject:
            kind = _add_case(element, record, group_of.get(record.case_id))
            counts["tests"] += 1
            counts["time"] += record.measurements.wall_s or 0.0
            if kind is not None:
                counts[kind] += 1
        found = Counter(group_of[record.case_id].label for record in of_subject if record.case_id in group_of)
        if found:
            lines = [f"{count} x {one_line(label)}" for label, count in found.most_common()]
            ET.SubElement(element, "system-out").text = "new findings:\n" + "\n".join(lines)
        _set_counts(element, counts)
        started = min((record.started_at for record in of_subject if record.started_at), default="")
        if started:
            element.set("timestamp", one_line(started))
        for key in totals:
            totals[key] += counts[key]
    _set_counts(root, totals)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, record: Record, group: FindingGroup | None) -> str | None:
    """Add a testcase. Returns the count of its suite to increment besides `tests`."""
    verdict = record.verdict
    case = ET.SubElement(
        suite,
        "testcase",
        classname=one_line(f"{record.suite}.{record.subject}.{record.group}"),
        name=one_line(record.name),
        time=f"{record.measurements.wall_s or 0.0:.6f}",
    )
    if verdict.status is Status.PASS:
        return None
    if verdict.status is Status.XPASS:
        text = f"agrees although known issue {verdict.issue} says that it differs: its entry can go"
        ET.SubElement(case, "system-out").text = one_line(text)
        return None
    if group is None:
        word = f"known issue {verdict.issue} ({verdict.observed})" if verdict.issue else verdict.status.value
        ET.SubElement(case, "skipped", message=one_line(f"{word}: {verdict.symptom}"))
        return "skipped"
    is_error = verdict.status in _ERRORS
    # All cases of a group start with the same words, by which CI systems sort failures.
    message = one_line(f"[{group.label}] {verdict.symptom}")
    found = ET.SubElement(case, "error" if is_error else "failure", type=verdict.status.value, message=message)
    found.text = details(record)
    return "errors" if is_error else "failures"


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


def _set_counts(element: ET.Element, counts: Mapping[str, float]) -> None:
    for key in ("tests", "failures", "errors", "skipped"):
        element.set(key, str(int(counts[key])))
    element.set("time", f"{counts['time']:.6f}")
