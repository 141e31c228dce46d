"""Tables of `torch-oracle traces`: rows as JSON lines and CSV, a summary as Markdown. Does not import torch."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from suites.text_tables import markdown_table
from suites.traces.explanations import EXPLANATIONS
from suites.traces.records import (
    ASPECTS,
    BOTH_REFUSE,
    NOT_COMPARABLE,
    SECOND_DIFFERS,
    SECOND_EQUAL,
    SECOND_NONE,
    SECOND_REFUSED,
    STATUSES,
    Difference,
    TraceRow,
)

ROWS_FILE = "rows.jsonl"
CSV_FILE = "rows.csv"
DIFFERENCES_FILE = "differences.csv"
OPERATORS_FILE = "operators.csv"
SUMMARY_FILE = "summary.md"

CSV_COLUMNS = (
    "case_id", "mode", "dtype", "status", "verdict", "aten_calls", "only_ours", "only_torch", "nodes_ours", "nodes_torch",
    "guards_ours", "guards_torch", "second", "second_input", "second_tried", "differences", "error_ours", "error_torch",
    "seconds",
)  # fmt: skip


OPERATOR_COLUMNS = (
    "suite", "operator", "dtype", "direction", "mode", "cases", *STATUSES[:5], "lost",
    "second_equal", "second_differs", "second_refused", "second_none", "reasons",
)  # fmt: skip


def write_tables(folder: Path, rows: Sequence[TraceRow], *, header: Sequence[str]) -> None:
    """All files. `header` says how and where the rows were made."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row.to_json(), sort_keys=True) for row in rows]
    (folder / ROWS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with (folder / CSV_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        writer.writerows([_cell(row, column) for column in CSV_COLUMNS] for row in rows)
    with (folder / DIFFERENCES_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("case_id", "aspect", "reason", "torch_too", "detail"))
        for row in rows:
            for one in row.differences:
                writer.writerow((row.case_id, one.aspect, one.reason, one.torch_too, one.detail))
            if row.is_finding and not row.differences:
                writer.writerow((row.case_id, row.status, "", "", row.symptom))
    with (folder / OPERATORS_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(OPERATOR_COLUMNS)
        writer.writerows(operator_lines(rows))
    (folder / SUMMARY_FILE).write_text(summary(rows, header=header), encoding="utf-8")


def operator_lines(rows: Sequence[TraceRow]) -> list[list[Any]]:
    """One line for each operator or model, dtype, direction and mode: the number of cases by outcome."""
    groups: dict[tuple[str, ...], list[TraceRow]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.group, row.dtype, row.direction, row.mode), []).append(row)
    lines = []
    for key, members in groups.items():
        statuses = Counter(row.status for row in members)
        seconds = Counter(row.second for row in members if row.mode == "symbolic")
        lost = sum(count for status, count in statuses.items() if status not in STATUSES[:5])
        reasons = sorted({one.reason for row in members for one in row.differences if one.reason})
        ended = [statuses[status] for status in STATUSES[:5]]
        second = [seconds[word] for word in (SECOND_EQUAL, SECOND_DIFFERS, SECOND_REFUSED, SECOND_NONE)]
        lines.append([*key, len(members), *ended, lost, *second, "; ".join(reasons)])
    return lines


def read_header(folder: Path) -> list[str]:
    """The lines that say how and where a folder's tables were made."""
    lines = (folder / SUMMARY_FILE).read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("* ") for line in lines[: lines.index("## Cases")] if line.startswith("* ")]


def read_rows(path: Path) -> list[TraceRow]:
    return [TraceRow.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _cell(row: TraceRow, column: str) -> Any:
    value = getattr(row, column)
    if column in ("only_ours", "only_torch"):
        return "; ".join(f"{name} x{count}" for name, count in value.items())
    if column == "differences":
        return "; ".join(f"{one.aspect} ({one.reason or 'unexplained'})" for one in value)
    return "" if value is None else value


# ------------------------------------------------------------------------------------------------------------ summary


def summary(rows: Sequence[TraceRow], *, header: Sequence[str]) -> str:
    """The tables as Markdown: totals by suite, direction, mode and dtype; differences by reason; refusals; findings."""
    parts = ["# Traces beside torch's", "", *(f"* {line}" for line in header), ""]
    parts += ["## Cases", "", *_totals(rows), "", "## Second size", "", *_seconds(rows), ""]
    parts += ["## Operators at a second size", "", *_operators(rows), ""]
    parts += ["## Differences", "", *_differences(rows), "", "## Traced by neither", "", *_refusals(rows), ""]
    parts += ["## Not explained", "", *_findings(rows), ""]
    return "\n".join(parts)


def _key(row: TraceRow) -> tuple[str, ...]:
    return row.suite, row.direction, row.mode, "integer" if row.dtype.startswith(("int", "uint")) else row.dtype


def _totals(rows: Sequence[TraceRow]) -> list[str]:
    body = []
    for key, group in _grouped(rows):
        statuses = Counter(row.status for row in group)
        traced = [row for row in group if row.aten_calls is not None]
        passed = sum(row.verdict == "pass" for row in traced)
        compared = [row for row in traced if not row.error_torch]
        same = sum(not row.only_ours and not row.only_torch for row in compared)
        body.append([*key, len(group), f"{passed} of {len(traced)}", f"{same} of {len(compared)}"]
                    + [statuses[status] for status in STATUSES])  # fmt: skip
    head = ["suite", "direction", "mode", "dtype", "cases", "equal to eager", "same operators", *STATUSES]
    return markdown_table(head, body)


def _seconds(rows: Sequence[TraceRow]) -> list[str]:
    body = []
    for key, group in _grouped([row for row in rows if row.mode == "symbolic"]):
        words = Counter(row.second for row in group if row.aten_calls is not None and row.status != NOT_COMPARABLE)
        found = [words[word] for word in (SECOND_EQUAL, SECOND_DIFFERS, SECOND_REFUSED, SECOND_NONE)]
        body.append([*key[:2], key[3], sum(words.values()), *found])
    head = ["suite", "direction", "dtype", "graphs", "equal", "differs", "guards refuse all", "no second size"]
    return markdown_table(head, body) if body else ["No symbolic graphs."]


def _operators(rows: Sequence[TraceRow]) -> list[str]:
    """How many operators or models have at least one graph that was right at a second size, and which have none."""
    body = []
    for key, group in _grouped([row for row in rows if row.mode == "symbolic" and row.aten_calls is not None]):
        traced = dict.fromkeys(row.group for row in group)
        tested = {row.group for row in group if row.second in (SECOND_EQUAL, SECOND_DIFFERS)}
        refused = {row.group for row in group if row.second == SECOND_REFUSED} - tested
        without = [name for name in traced if name not in tested and name not in refused]
        body.append([*key[:2], key[3], len(traced), len(tested), ", ".join(sorted(refused)), ", ".join(without)])
    head = ["suite", "direction", "dtype", "traced", "tested", "guards refuse every size tried", "no second size"]
    return markdown_table(head, body) if body else ["No symbolic graphs."]


def _differences(rows: Sequence[TraceRow]) -> list[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for row in rows:
        for one in row.differences:
            key = (row.mode, one.aspect, one.reason)
            counts[key] += 1
            examples.setdefault(key, row.case_id)
    reasons = {one.name: one.reason for one in EXPLANATIONS}
    body = [
        [
            mode,
            aspect,
            count,
            reason or "unexplained",
            reasons.get(reason, ASPECTS[aspect]),
            examples[mode, aspect, reason],
        ]
        for (mode, aspect, reason), count in sorted(counts.items())
    ]
    return (
        markdown_table(["mode", "aspect", "cases", "reason", "what it is", "first case"], body) if body else ["None."]
    )


def _refusals(rows: Sequence[TraceRow]) -> list[str]:
    pairs = Counter(
        (row.mode, _error_class(row.error_ours), _error_class(row.error_torch))
        for row in rows
        if row.status == BOTH_REFUSE
    )
    body = [[mode, ours, torch, count] for (mode, ours, torch), count in sorted(pairs.items())]
    return markdown_table(["mode", "ours raises", "torch's raises", "cases"], body) if body else ["None."]


def _findings(rows: Sequence[TraceRow]) -> list[str]:
    """Findings; those of one operator with the same text are one line."""
    found: dict[tuple[str, ...], list[TraceRow]] = {}
    for row in rows:
        if row.is_finding:
            texts = [_finding_text(one) for one in row.differences if not one.reason] or [row.symptom[:200]]
            found.setdefault((row.group, row.mode, row.status, _without_numbers("; ".join(texts))), []).append(row)
    body = [
        [group, mode, len(members), members[0].case_id, status, text]
        for (group, mode, status, text), members in found.items()
    ]
    return markdown_table(["operator", "mode", "cases", "first case", "status", "what"], body) if body else ["None."]


def _finding_text(one: Difference) -> str:
    return f"{one.aspect}{' (torch too)' if one.torch_too else ''}: {one.detail[:200]}"


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)


def _error_class(error: str) -> str:
    return error.partition(":")[0]


def _grouped(rows: Iterable[TraceRow]) -> list[tuple[tuple[str, ...], list[TraceRow]]]:
    groups: dict[tuple[str, ...], list[TraceRow]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    return list(groups.items())
