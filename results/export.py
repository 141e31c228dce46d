"""Export a run: JSON lines, CSV, PyTorch's benchmark CSVs, Parquet, Markdown, JUnit XML. Files are replaced atomically."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from oracle.errors import UsageError
from oracle.records import SCHEMA_VERSION, Record
from oracle.verdict import Status
from results import bias
from results.files import write_atomically
from results.groups import group_findings
from results.junit import junit_xml
from results.render import escape_markdown, markdown, markdown_body
from results.report import details_of, run_line, selected, summary_of
from results.schema import FLAT_COLUMNS, FLAT_NAMES, flatten
from results.store import RunInfo


def to_json_lines(records: Iterable[Record]) -> str:
    """One `Record.to_json()` per line; `from_json_lines` reads it back."""
    return "".join(json.dumps(record.to_json()) + "\n" for record in records)


def from_json_lines(text: str) -> list[Record]:
    """Read records. Raises UsageError with the line number for an invalid record or one of a newer schema."""
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise TypeError(f"a {type(data).__name__}, but should be an object")
            records.append(Record.from_json(data))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                seen=f"line {number}: {type(error).__name__}: {error}",
                expected="a record as written by `torch-oracle export --format jsonl`",
                do="export the run again",
            ) from error
    return records


def to_csv(records: Iterable[Record]) -> str:
    """One row per record with the columns of results.schema.FLAT_COLUMNS, then `run_id`.

    Lists are JSON; unknown values are empty. Text that a spreadsheet would take for a formula starts with an apostrophe (see
    `_csv`); JSON lines and Parquet have all text unchanged.
    """
    rows = []
    for record in records:
        row = flatten(record)
        cells = [json.dumps(row[name]) if isinstance(row[name], tuple) else row[name] for name in FLAT_NAMES]
        rows.append([*cells, record.run_id])
    return _csv((*FLAT_NAMES, "run_id"), rows)


# Columns of PyTorch's benchmarks from Dynamo's counters. Those that records do not have are empty.
_DYNAMO_STATS: Final = (
    "calls_captured",
    "unique_graphs",
    "graph_breaks",
    "unique_graph_breaks",
    "autograd_captures",
    "autograd_compiles",
    "cudagraph_skips",
)
_IDS: Final = ("run_id", "case_id")  # columns of ours, after PyTorch's
_ACCURACY_COLUMNS: Final = ("dev", "name", "batch_size", "accuracy", *_DYNAMO_STATS, "compilation_latency", *_IDS)
_SPEEDUP_COLUMNS: Final = (
    *("dev", "name", "batch_size", "speedup", "abs_latency"),
    *("compilation_latency", "compression_ratio", "eager_peak_mem", "dynamo_peak_mem"),
    *_DYNAMO_STATS,
    *_IDS,
)
_NO_BATCH_SIZE: Final = 0  # PyTorch's benchmarks write this for a model without a batch size


def to_dynamo_accuracy(records: Iterable[Record]) -> str:
    """The accuracy CSV of PyTorch's benchmarks/dynamo, one row per record. `accuracy` is our status word.

    `compilation_latency` is in seconds. Such a file is for one compiler: raises UsageError for several subjects.
    """
    rows = []
    for record in _one_subject(records):
        m = record.measurements
        rows.append(
            [
                *(record.device, record.name, _NO_BATCH_SIZE, record.verdict.status.value, *_stats(record)),
                *(m.compile_cold_s, record.run_id, record.case_id),
            ]
        )
    return _csv(_ACCURACY_COLUMNS, rows)


def to_dynamo_speedup(records: Iterable[Record]) -> str:
    """The performance CSV of PyTorch's benchmarks/dynamo, one row per timed or failing record.

    `abs_latency` is in milliseconds, `compilation_latency` in seconds, memory in 1e9 bytes. As in PyTorch, a failing record has
    speedup and latency 0. Passing records that were not timed have no row. Raises UsageError for several subjects.
    """
    rows = []
    for record in _one_subject(records):
        m = record.measurements
        ids = (record.run_id, record.case_id)
        start = [record.device, record.name, _NO_BATCH_SIZE]
        if record.verdict.status.is_finding:
            rows.append([*start, 0.0, 0.0, None, None, None, None, *_stats(record), *ids])
        elif record.verdict.status is Status.PASS and m.speedup is not None and m.subject_s is not None:
            ratio = m.eager_peak_memory / m.peak_memory if m.eager_peak_memory and m.peak_memory else None
            memory = [None if size is None else size / 1e9 for size in (m.eager_peak_memory, m.peak_memory)]
            rows.append(
                [*start, m.speedup, m.subject_s * 1000, m.compile_cold_s, ratio, *memory, *_stats(record), *ids]
            )
    return _csv(_SPEEDUP_COLUMNS, rows)


def _stats(record: Record) -> list[Any]:
    known = {"unique_graphs": record.measurements.graphs, "graph_breaks": record.measurements.graph_breaks}
    return [known.get(name) for name in _DYNAMO_STATS]


def _one_subject(records: Iterable[Record]) -> list[Record]:
    records = list(records)
    for what, values in (
        ("subject", {record.subject: None for record in records}),
        ("suite", {record.suite: None for record in records}),
    ):
        if len(values) > 1:
            raise UsageError(
                seen=f"a run with the {what}s {', '.join(values)}",
                expected=f"one {what}: a CSV of PyTorch's benchmarks has no column for it",
                do=f"choose one with --{what}",
            )
    return records


# Spreadsheets evaluate a cell that starts like this, also after white space. East Asian versions accept the last four.
_FORMULA: Final = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_QUOTED: Final = re.compile(r'[",]|[^\x20-\x7e]|^ | $')


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text with "\\n" between rows. Text with special characters is quoted: many readers take a lone "\\r" for a line end.

    Names, symptoms and tracebacks come from programs. One that a spreadsheet would evaluate as a formula is prefixed by an
    apostrophe, which makes it text there. Numbers ("-1.5", "-inf", "-1+2j") are not changed.
    """
    lines = (",".join(map(_csv_cell, row)) for row in (columns, *rows))
    return "".join(f"{line}\n" for line in lines)


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, str) and _FORMULA.match(text) and not _is_number(text):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _is_number(text: str) -> bool:
    try:
        complex(text)
    except ValueError:
        return False
    return True


_ARROW_TYPES: Final = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
}


def to_arrow(records: Iterable[Record], *, run: RunInfo) -> pa.Table:
    """An Arrow table with the columns of results.schema.FLAT_COLUMNS, `extra` and `run_id`. None is null, NaN stays NaN.

    The metadata are the run id, its environment (JSON) and the schema version.
    """
    schema = pa.schema(
        [pa.field(c.name, _ARROW_TYPES[c.kind], metadata={"meaning": c.meaning}) for c in FLAT_COLUMNS]
        + [pa.field("extra", pa.string()), pa.field("run_id", pa.string())],
        metadata={
            "torch_oracle_run_id": run.run_id,
            "torch_oracle_environment": json.dumps(run.environment),
            "torch_oracle_schema_version": str(SCHEMA_VERSION),
        },
    )
    rows = []
    for record in records:
        row = flatten(record) | {"run_id": record.run_id}
        for name, value in row.items():
            if isinstance(value, str) and not value.isascii():
                row[name] = value.encode("utf-8", "backslashreplace").decode("utf-8")  # escapes lone surrogates
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema)


def to_markdown(records: Iterable[Record], *, run: RunInfo) -> str:
    """The summary as Markdown, for a job summary or a comment: grouped findings, and each finding in a collapsed section."""
    of = selected(list(records))
    shown = [*summary_of(of, group_findings(of.notable), limit=None), *bias.tables_of(of.bias)]
    body = "\n".join(markdown(part, level=3) for part in shown)
    folded = "".join(
        f"\n<details><summary>{escape_markdown(part.title)}</summary>\n\n{markdown_body(part)}\n</details>\n"
        for part in details_of(of)
    )
    head = f"## torch-oracle: {escape_markdown(run.run_id)}\n\n{escape_markdown(run_line(run))}\n\n"
    return head + body + folded


def to_junit(records: Iterable[Record], *, run: RunInfo) -> str:
    return junit_xml(records, run_id=run.run_id, environment=run.environment)


_TEXT_FORMATS: Final[Mapping[str, Callable[[list[Record], RunInfo], str]]] = {
    "jsonl": lambda records, run: to_json_lines(records),
    "csv": lambda records, run: to_csv(records),
    "dynamo-accuracy": lambda records, run: to_dynamo_accuracy(records),
    "dynamo-speedup": lambda records, run: to_dynamo_speedup(records),
    "markdown": lambda records, run: to_markdown(records, run=run),
    "junit": lambda records, run: to_junit(records, run=run),
}
FORMATS: Final = (*_TEXT_FORMATS, "parquet")
_SUFFIXES: Final = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".md": "markdown", ".xml": "junit"}


def format_of(path: Path, given: str | None) -> str:
    """The given format, or the one of the file's suffix. Raises UsageError if there is neither."""
    chosen = given or _SUFFIXES.get(path.suffix)
    if chosen is None or chosen not in FORMATS:
        raise UsageError(
            seen=f"--format {given}" if given else f"{path}, whose suffix names no format",
            expected=f"--format one of {', '.join(FORMATS)}, or a suffix of {', '.join(_SUFFIXES)}",
            do="name the format",
        )
    return chosen


def export(records: Iterable[Record], *, run: RunInfo, path: Path, format: str) -> None:
    """Write `records` to `path` in one of FORMATS. Raises UsageError if the path cannot be written."""
    if format == "parquet":
        table = to_arrow(records, run=run)
        write_atomically(path, lambda temporary: pq.write_table(table, temporary))
    else:
        write_atomically(path, _TEXT_FORMATS[format](list(records), run))
