"""Export a run: JSON lines, CSV, PyTorch's benchmark CSVs, Parquet, Markdown, JUnit XML. Files are replaced atomically.

Each format is written as the records arrive, since a large run does not fit into memory. Markdown and JUnit XML begin with counts
and groups of findings, which the database makes (`export_run`), or which are made of a list of records (`export`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from oracle.errors import UsageError
from oracle.records import SCHEMA_VERSION, Record
from oracle.verdict import Status
from results import bias
from results.files import write_atomically
from results.junit import junit_of_records, junit_of_run
from results.queries import Cases, case_filter
from results.render import escape_markdown, markdown, markdown_body
from results.report import Selected, details_of, queried, run_line, selected, summary_of
from results.schema import FLAT_COLUMNS, FLAT_NAMES, flatten
from results.store import RunInfo, Store


def json_lines(records: Iterable[Record]) -> Iterator[str]:
    """One `Record.to_json()` per line; `from_json_lines` reads it back."""
    return (json.dumps(record.to_json()) + "\n" for record in records)


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


def csv_lines(records: Iterable[Record]) -> Iterator[str]:
    """One row per record with the columns of results.schema.FLAT_COLUMNS, then `run_id`.

    Lists are JSON; unknown values are empty. Text that a spreadsheet would take for a formula starts with an apostrophe (see
    `_csv`); JSON lines and Parquet have all text unchanged.
    """
    return _csv((*FLAT_NAMES, "run_id"), map(_cells, records))


def _cells(record: Record) -> list[Any]:
    row = flatten(record)
    return [
        *(json.dumps(row[name]) if isinstance(row[name], tuple) else row[name] for name in FLAT_NAMES),
        record.run_id,
    ]


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


def dynamo_accuracy_lines(records: Iterable[Record]) -> Iterator[str]:
    """The accuracy CSV of PyTorch's benchmarks/dynamo, one row per record. `accuracy` is our status word.

    `compilation_latency` is in seconds. Such a file is for one compiler: raises UsageError for several subjects.
    """
    return _csv(_ACCURACY_COLUMNS, map(_accuracy_row, _one_subject(records)))


def _accuracy_row(record: Record) -> list[Any]:
    return [
        *(record.device, record.name, _NO_BATCH_SIZE, record.verdict.status.value, *_stats(record)),
        *(record.measurements.compile_cold_s, record.run_id, record.case_id),
    ]


def dynamo_speedup_lines(records: Iterable[Record]) -> Iterator[str]:
    """The performance CSV of PyTorch's benchmarks/dynamo, one row per timed or failing record.

    `abs_latency` is in milliseconds, `compilation_latency` in seconds, memory in 1e9 bytes. As in PyTorch, a failing record has
    speedup and latency 0. Passing records that were not timed have no row. Raises UsageError for several subjects.
    """
    return _csv(_SPEEDUP_COLUMNS, (row for one in _one_subject(records) if (row := _speedup_row(one)) is not None))


def _speedup_row(record: Record) -> list[Any] | None:
    m = record.measurements
    ids = (record.run_id, record.case_id)
    start = [record.device, record.name, _NO_BATCH_SIZE]
    if record.verdict.status.is_finding:
        return [*start, 0.0, 0.0, None, None, None, None, *_stats(record), *ids]
    if record.verdict.status is not Status.PASS or m.speedup is None or m.subject_s is None:
        return None
    ratio = m.eager_peak_memory / m.peak_memory if m.eager_peak_memory and m.peak_memory else None
    memory = [None if size is None else size / 1e9 for size in (m.eager_peak_memory, m.peak_memory)]
    return [*start, m.speedup, m.subject_s * 1000, m.compile_cold_s, ratio, *memory, *_stats(record), *ids]


def _stats(record: Record) -> list[Any]:
    known = {"unique_graphs": record.measurements.graphs, "graph_breaks": record.measurements.graph_breaks}
    return [known.get(name) for name in _DYNAMO_STATS]


def _one_subject(records: Iterable[Record]) -> Iterator[Record]:
    first: Record | None = None
    for record in records:
        first = first or record
        for what, old, new in (("subject", first.subject, record.subject), ("suite", first.suite, record.suite)):
            if old != new:
                raise UsageError(
                    seen=f"a run with the {what}s {old}, {new}",
                    expected=f"one {what}: a CSV of PyTorch's benchmarks has no column for it",
                    do=f"choose one with --{what}",
                )
        yield record


# Spreadsheets evaluate a cell that starts like this, also after white space. East Asian versions accept the last four.
_FORMULA: Final = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_QUOTED: Final = re.compile(r'[",]|[^\x20-\x7e]|^ | $')


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a CSV, each with its "\\n".

    Text with special characters is quoted: many readers take a lone "\\r" for a line end. Names, symptoms and tracebacks come
    from programs. One that a spreadsheet would evaluate as a formula is prefixed by an apostrophe, which makes it text there.
    Numbers ("-1.5", "-inf", "-1+2j") are not changed.
    """
    return (",".join(map(_csv_cell, row)) + "\n" for row in chain([columns], rows))


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


_ROWS_IN_GROUP: Final = 10_000
_ARROW_TYPES: Final = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
}


def _arrow_schema(run: RunInfo) -> pa.Schema:
    return pa.schema(
        [pa.field(c.name, _ARROW_TYPES[c.kind], metadata={"meaning": c.meaning}) for c in FLAT_COLUMNS]
        + [pa.field("extra", pa.string()), pa.field("run_id", pa.string())],
        metadata={
            "torch_oracle_run_id": run.run_id,
            "torch_oracle_environment": json.dumps(run.environment),
            "torch_oracle_schema_version": str(SCHEMA_VERSION),
        },
    )


def _arrow_row(record: Record) -> dict[str, Any]:
    row = flatten(record) | {"run_id": record.run_id}
    for name, value in row.items():
        if isinstance(value, str) and not value.isascii():
            row[name] = value.encode("utf-8", "backslashreplace").decode("utf-8")  # escapes lone surrogates
    return row


def write_parquet(records: Iterable[Record], path: Path, *, run: RunInfo) -> None:
    """A table with the columns of results.schema.FLAT_COLUMNS, `extra` and `run_id`. None is null, NaN stays NaN.

    The metadata are the run id, its environment (JSON) and the schema version.
    """
    schema = _arrow_schema(run)
    rows = map(_arrow_row, records)
    with pq.ParquetWriter(path, schema) as writer:
        while block := list(islice(rows, _ROWS_IN_GROUP)):
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def markdown_of(of: Selected, *, run: RunInfo) -> Iterator[str]:
    """The summary as Markdown, for a job summary or a comment: grouped findings, and each finding in a collapsed section."""
    yield f"## torch-oracle: {escape_markdown(run.run_id)}\n\n{escape_markdown(run_line(run))}\n\n"
    shown = [*summary_of(of, limit=None), *bias.tables_of(of.bias)]
    yield "\n".join(markdown(part, level=3) for part in shown)
    for part in details_of(of):
        yield f"\n<details><summary>{escape_markdown(part.title)}</summary>\n\n{markdown_body(part)}\n</details>\n"


_LINES: Final[Mapping[str, Callable[[Iterable[Record]], Iterator[str]]]] = {
    "jsonl": json_lines,
    "csv": csv_lines,
    "dynamo-accuracy": dynamo_accuracy_lines,
    "dynamo-speedup": dynamo_speedup_lines,
}


def export(records: Iterable[Record], *, run: RunInfo, path: Path, format: str) -> None:
    """Write `records` to `path` in one of `results.commands.FORMATS`. Raises UsageError if the path cannot be written."""
    if format == "parquet":
        write_atomically(path, lambda temporary: write_parquet(records, temporary, run=run))
    elif format == "markdown":
        write_atomically(path, markdown_of(selected(list(records)), run=run))
    elif format == "junit":
        write_atomically(path, junit_of_records(list(records), run_id=run.run_id, environment=run.environment))
    else:
        write_atomically(path, _LINES[format](records))


def export_run(store: Store, run: RunInfo, cases: Cases, *, path: Path, format: str) -> None:
    """Write these cases of a run to `path` in one of `results.commands.FORMATS`, without holding them all in memory."""
    if format == "markdown":
        write_atomically(path, markdown_of(queried(store, run, cases, limit=None), run=run))
    elif format == "junit":
        write_atomically(path, junit_of_run(store, run, cases))
    else:
        # Closed at once if the export fails, for SQLite leaves files behind that are read when they are closed.
        with closing(store.records(run.run_id, with_missing=True, where=case_filter(cases))) as records:
            export(records, run=run, path=path, format=format)
