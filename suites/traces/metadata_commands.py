"""`torch-oracle metadata`: compares torch's fake kernels with the real ones."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from oracle.environment import check_supported
from oracle.isolate import Completed, Pool, Task
from suites.registry import modules_of
from suites.request import parse_shard
from suites.text_tables import markdown_table
from suites.traces import DIRECTIONS, INTEGER
from suites.traces.commands import PRELOAD, SUITES, header_of, how_it_ended, split_words
from suites.traces.metadata_records import AGREES, DIFFERS, FIELDS, NOT_COMPARABLE, MetadataGroup, MetadataRow, grouped
from suites.traces.planning import TracesRequest, plan_traces
from suites.traces.records import TraceCase

SHAPES = ("static", "symbolic")
CASE_TIMEOUT_S = 120.0
CASE_MEMORY_BYTES = 6 * 2**30
ROWS_FILE, GROUPS_FILE, SUMMARY_FILE = "rows.jsonl", "differences.csv", "summary.md"
GROUP_COLUMNS = (
    "shapes", "op", "field", "calls", "cases", "dtypes", "where", "arguments", "real", "fake", "first_case",
)  # fmt: skip


def metadata(
    suite: Annotated[str, typer.Option(help="opinfo, models (joint), or both by comma.")] = "opinfo",
    shapes: Annotated[str, typer.Option(help="Sizes in the fake run: static, symbolic, or both by comma.")] = "static",
    dtype: Annotated[
        str, typer.Option(help=f"Dtypes by comma; {INTEGER!r}: int64, or another integer an operator takes.")
    ] = f"float32,{INTEGER}",
    direction: Annotated[str, typer.Option(help="forward, joint (backward kernels too), or both by comma.")] = ",".join(
        DIRECTIONS
    ),
    ops: Annotated[list[str] | None, typer.Option(help="Glob on operators; repeatable.")] = None,
    max_samples: Annotated[int | None, typer.Option(help="At most so many samples per operator and dtype.")] = None,
    shard: Annotated[str, typer.Option(help="Run part i of n, as i/n.")] = "1/1",
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for rows.jsonl, differences.csv, summary.md.")] = Path(
        "metadata"
    ),
) -> None:
    """Run operators on real tensors, run every aten call inside on fake tensors too, and list where the metadata differ."""
    check_supported()
    started = time.monotonic()
    request = TracesRequest(
        suites=split_words("suite", suite, SUITES),
        modes=split_words("shapes", shapes, SHAPES),
        dtypes=tuple(word.strip() for word in dtype.split(",")),
        directions=split_words("direction", direction, DIRECTIONS),
        match=tuple(ops or ()),
        max_samples=max_samples,
        shard=parse_shard(shard),
    )
    count = workers or len(os.sched_getaffinity(0))
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    with Pool(workers=count, preload=(*PRELOAD, *modules_of(request.suites))) as pool:
        cases = plan_traces(request, pool)
        err.print(f"{len(cases)} cases, {count} workers")
        rows = _run(cases, pool)
        header = header_of(pool, max_samples=max_samples, seconds=time.monotonic() - started, workers=count)
    text = summary(rows, header=header)
    write_tables(output, rows, text)
    sys.stdout.write(text)
    err.print(f"tables: {output}")
    raise typer.Exit(1 if any(row.is_finding for row in rows) else 0)


def _run(cases: Sequence[TraceCase], pool: Pool) -> list[MetadataRow]:
    tasks = [
        Task(
            key=case.case_id,
            function="suites.traces.metadata_worker:run_case",
            payload={"case": case.to_json()},
            group=f"{case.suite}/{case.group}",
            timeout_s=CASE_TIMEOUT_S,
            memory_bytes=CASE_MEMORY_BYTES,
        )
        for case in cases
    ]
    by_id = {case.case_id: case for case in cases}
    rows: dict[str, MetadataRow] = {}
    for result in pool.run(tasks):
        case = by_id[result.task.key]
        if isinstance(result.end, Completed):
            rows[case.case_id] = MetadataRow.from_json(cast("dict[str, Any]", result.end.value)["row"])
        else:
            rows[case.case_id] = _lost(case, *how_it_ended(result.end))
    return [rows.get(case.case_id) or _lost(case, "missing", "no worker ran it") for case in cases]


def _lost(case: TraceCase, status: str, symptom: str) -> MetadataRow:
    return MetadataRow.of(case, status=status, symptom=symptom)


# ------------------------------------------------------------------------------------------------------------- tables


def write_tables(folder: Path, rows: Sequence[MetadataRow], text: str) -> None:
    """Rows as JSON lines, differences by operator and field as CSV, the summary as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row.to_json(), sort_keys=True) + "\n" for row in rows)
    (folder / ROWS_FILE).write_text(lines, encoding="utf-8")
    with (folder / GROUPS_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(GROUP_COLUMNS)
        for group in grouped(rows):
            one = group.example
            writer.writerow(
                (group.shapes, group.op, group.field, group.calls, group.cases, " ".join(group.dtypes), one.where,
                 one.arguments, one.real, one.fake, group.first_case)
            )  # fmt: skip
    (folder / SUMMARY_FILE).write_text(text, encoding="utf-8")


def summary(rows: Sequence[MetadataRow], *, header: Sequence[str]) -> str:
    """Totals, differences by field, each operator that differs, and what could not be compared."""
    groups = grouped(rows)
    parts = ["# Fake metadata beside real", "", *(f"* {line}" for line in header), ""]
    parts += ["## Cases", "", *_totals(rows), "", "## Fields", "", *_fields(groups), ""]
    parts += ["## Differences", "", *_differences(groups), "", "## Not compared", "", *_skipped(rows), ""]
    parts += ["## Cases that did not run", "", *_lost_cases(rows), ""]
    return "\n".join(parts)


def _totals(rows: Sequence[MetadataRow]) -> list[str]:
    keys = dict.fromkeys((row.shapes, row.direction, row.dtype) for row in rows)
    body = []
    for key in keys:
        members = [row for row in rows if (row.shapes, row.direction, row.dtype) == key]
        statuses = Counter(row.status for row in members)
        known = [statuses.pop(status, 0) for status in (AGREES, DIFFERS, NOT_COMPARABLE)]
        calls, compared = sum(row.calls for row in members), sum(row.compared for row in members)
        body.append([*key, len(members), calls, compared, *known, sum(statuses.values())])
    head = [
        "sizes",
        "direction",
        "dtype",
        "cases",
        "aten calls",
        "compared",
        "agrees",
        "differs",
        "eager raises",
        "lost",
    ]
    return markdown_table(head, body)


def _fields(groups: Sequence[MetadataGroup]) -> list[str]:
    body = []
    for shapes in SHAPES:
        for what, meaning in FIELDS.items():
            members = [group for group in groups if group.field == what and group.shapes == shapes]
            if members:
                body.append([shapes, what, meaning, len(members), sum(group.calls for group in members)])
    head = ["sizes", "field", "what it is", "operators", "distinct calls"]
    return markdown_table(head, body) if body else ["None."]


def _differences(groups: Sequence[MetadataGroup]) -> list[str]:
    body = [
        [group.shapes, group.op, group.field, group.calls, group.example.where, group.example.arguments[:160],
         group.example.real[:80], group.example.fake[:120]]
        for group in groups
    ]  # fmt: skip
    head = ["sizes", "overload", "field", "calls", "where", "example", "real", "fake"]
    return markdown_table(head, body) if body else ["None."]


def _skipped(rows: Sequence[MetadataRow]) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for what, count in row.skipped.items():
            op, _, why = what.partition(": ")
            counts[why, op] += count
    by_reason: dict[str, list[str]] = {}
    for (why, op), count in sorted(counts.items()):
        by_reason.setdefault(why, []).append(f"{op} x{count}")
    body = [[why, len(members), ", ".join(members)] for why, members in by_reason.items()]
    return markdown_table(["why", "overloads", "which"], body) if body else ["None."]


def _lost_cases(rows: Sequence[MetadataRow]) -> list[str]:
    body = [[row.case_id, row.status, row.symptom[:200]] for row in rows if row.status not in (AGREES, DIFFERS)]
    return markdown_table(["case", "status", "why"], body) if body else ["None."]
