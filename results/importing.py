"""Read runs from files: JSON lines and Parquet as `export` writes them, PyTorch's benchmark CSVs and expected accuracies.

Files are not trusted: each row is checked by itself, and an error names the line and the column. A file is read as a whole before
anything is written. A CSV of PyTorch's benchmarks/dynamo has a row per model; a file of its ci_expected_accuracy has the columns
name, accuracy and graph_breaks.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from oracle.errors import UsageError
from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Status, Verdict
from results.schema import FLAT_COLUMNS, FLAT_NAMES, Kind, flatten, unflatten
from results.store import COMPLETE, INTERRUPTED, RUNNING, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run read from a file. Its cases have no programs, since no file has them."""

    run_id: str
    records: tuple[Record, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Facts about a run that a CSV of PyTorch's benchmarks lacks."""

    suite: str
    subject: str
    run_id: str | None = None  # None: made of the file's content, so that it is not imported twice


Located = Iterable[tuple[str, Record]]  # where in the file ("line 3"), and what is there


def read_file(path: Path, labels: Labels) -> list[ImportedRun]:
    """The runs in a file. Raises UsageError, with line and column where a row is wrong."""
    if path.suffix == ".parquet":
        records, environment = _parquet(path)
        return _runs(path, records, environment)
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            seen=f"{path}: {error.strerror}", expected="a file to import", do="correct the path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(seen=f"{path}: {error}", expected="text in UTF-8", do="convert the file") from error
    if path.suffix == ".jsonl":
        return _runs(path, _json_lines(path, text), {})
    if path.suffix == ".csv":
        run_id = labels.run_id or f"imported-{hashlib.sha256(data).hexdigest()[:12]}"
        return _runs(path, _benchmark(path, text, labels, run_id), {})
    raise UsageError(seen=f"{path}", expected="a name that ends in .jsonl, .parquet or .csv", do="rename the file")


def write_runs(store: Store, runs: Iterable[ImportedRun], *, source: str) -> None:
    """Write all runs, or none. Raises UsageError for a run that is there already."""
    present = {run.run_id for run in store.runs()}
    with store.transaction() as transaction:
        for run in runs:
            if run.run_id in present:
                raise UsageError(
                    seen=f"run {run.run_id} of {source} is in {store.location} already",
                    expected="a new run; nothing was written",
                    do="name another database with --db, or another id with --run-id",
                )
            started = min((record.started_at for record in run.records if record.started_at), default=None)
            transaction.begin_run(
                run_id=run.run_id,
                environment=run.environment,
                arguments={"imported_from": source},
                started_at=started,
            )
            transaction.add_cases(run.run_id, [_planned(record) for record in run.records])
            transaction.set_state(run.run_id, RUNNING)
            # An export has a row for each planned case, also where the run has no record.
            recorded = [record for record in run.records if not record.verdict.status.is_absent]
            if recorded:
                transaction.append(recorded)
            is_complete = len(recorded) == len(run.records)
            transaction.end_run(run.run_id, state=COMPLETE if is_complete else INTERRUPTED)


def _planned(record: Record) -> PlannedCase:
    names = ("case_id", "suite", "group", "name", "subject", "dtype", "direction", "device", "tags")
    return PlannedCase(**{name: getattr(record, name) for name in names})


def _runs(path: Path, located: Located, environment: Mapping[str, Any]) -> list[ImportedRun]:
    places: dict[tuple[str, str], str] = {}
    runs: dict[str, list[Record]] = {}
    for where, record in located:
        key = (record.run_id, record.case_id)
        if key in places:
            raise _wrong(path, where, f"{record.case_id} a second time (first on {places[key]})", "one row per case")
        places[key] = where
        runs.setdefault(record.run_id, []).append(record)
    if not runs:
        raise UsageError(seen=f"{path} without a row", expected="at least one record", do="name another file")
    return [ImportedRun(run_id=key, records=tuple(rows), environment=environment) for key, rows in runs.items()]


def _wrong(path: Path, where: str, seen: str, expected: str) -> UsageError:
    return UsageError(
        seen=f"{path}, {where}: {seen}", expected=expected, do="correct or remove it; nothing was written"
    )


# ------------------------------------------------------------------------------------------------------- our formats

_IS_KIND: Final[Mapping[Kind, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "texts": lambda value: isinstance(value, tuple) and all(isinstance(item, str) for item in value),
    "ints": lambda value: isinstance(value, tuple) and all(isinstance(item, int) for item in value),
}
_REQUIRED: Final = frozenset(
    {"case_id", "suite", "group", "name", "subject", "dtype", "direction", "device", "symptom"}
)


def _checked(path: Path, where: str, make: Callable[[], Record]) -> Record:
    """The record, whose fields have the types of their columns."""
    try:
        record = make()
        row = flatten(record)
        for column in FLAT_COLUMNS:
            value = row[column.name]
            if not (value is None and column.name not in _REQUIRED) and not _IS_KIND[column.kind](value):
                raise TypeError(f"{column.field} is {value!r}, but should be of kind {column.kind}")
        if not isinstance(record.run_id, str) or not record.run_id or not record.case_id:
            raise ValueError("an empty run_id or case_id")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = "no field " if isinstance(error, KeyError) else ""
        raise _wrong(path, where, f"{kind}{error}", "a record as `torch-oracle export` writes it") from error
    return record


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, Record]]:
    def record_of(line: str) -> Record:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise TypeError(f"a {type(data).__name__}, but should be an object")
        return Record.from_json(data)

    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"line {number}"
            yield where, _checked(path, where, lambda line=line: record_of(line))


def _parquet(path: Path) -> tuple[Iterator[tuple[str, Record]], Mapping[str, Any]]:
    try:
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        environment = json.loads(metadata.get(b"torch_oracle_environment", b"{}"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(seen=f"{path}: {error}", expected="a Parquet file", do="correct the path") from error
    missing = [name for name in FLAT_NAMES if name not in table.column_names and name not in _ADDED]
    if missing:
        raise UsageError(
            seen=f"{path} without the columns {', '.join(missing[:5])}",
            expected="the columns that `torch-oracle export` writes",
            do="export the run again",
        )
    default = metadata.get(b"torch_oracle_run_id", b"").decode("utf-8", "replace")

    def records() -> Iterator[tuple[str, Record]]:
        number = 0
        for batch in table.to_batches(max_chunksize=5000):
            for row in batch.to_pylist():
                number += 1
                run_id = row.pop("run_id", None) or default
                where = f"row {number}"
                yield (
                    where,
                    _checked(path, where, lambda row=row, run_id=run_id: unflatten(_ADDED | row, run_id=run_id)),
                )

    return records(), environment if isinstance(environment, dict) else {}


_ADDED: Final = {"issue": "", "observed": ""}  # columns that older files do not have

# -------------------------------------------------------------------------------------------- PyTorch's benchmarks


def _benchmark(path: Path, text: str, labels: Labels, run_id: str) -> Iterator[tuple[str, Record]]:
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = next(reader, [])
        is_accuracy, is_speed = {"name", "accuracy"} <= set(header), {"name", "speedup"} <= set(header)
        if not (is_accuracy or is_speed) or len(set(header)) != len(header):
            raise _wrong(
                path,
                "line 1",
                f"the columns {', '.join(header[:8]) or '(none)'}",
                "a CSV of PyTorch's benchmarks/dynamo (dev, name, batch_size, accuracy or speedup, ...), "
                "or one of its ci_expected_accuracy (name, accuracy, graph_breaks)",
            )
        for cells in reader:
            if not cells:
                continue
            where = f"line {reader.line_num}"
            if len(cells) != len(header):
                raise _wrong(path, where, f"{len(cells)} fields", f"{len(header)}, as line 1 has")
            row = _BenchmarkRow(path, where, dict(zip(header, cells, strict=True)))
            yield where, row.record(labels, run_id)
    except csv.Error as error:
        raise _wrong(path, f"line {reader.line_num}", str(error), "a CSV file") from error


@dataclass(frozen=True, slots=True)
class _BenchmarkRow:
    path: Path
    where: str
    cells: Mapping[str, str]

    def record(self, labels: Labels, run_id: str) -> Record:
        name = self.cells["name"].strip()
        if not name:
            raise _wrong(self.path, self.where, "an empty name", "the name of a model")
        speedup, latency_ms = self.number("speedup"), self.number("abs_latency")
        case = PlannedCase(
            case_id=f"{labels.suite}/{name}@{labels.subject}",
            suite=labels.suite,
            group=name,
            name=name,
            subject=labels.subject,
            device=self.cells.get("dev", ""),
            direction="",
        )
        graphs, breaks = self.number("unique_graphs"), self.number("graph_breaks")
        subject_s = latency_ms / 1000 if latency_ms else None
        measurements = Measurements(
            speedup=speedup or None,
            subject_s=subject_s,
            eager_s=subject_s * speedup if subject_s and speedup else None,
            compile_cold_s=self.number("compilation_latency"),
            peak_memory=self.bytes("dynamo_peak_mem"),
            eager_peak_memory=self.bytes("eager_peak_mem"),
            graphs=None if graphs is None else int(graphs),
            graph_breaks=None if breaks is None else int(breaks),
        )
        return Record.of(case, run_id=run_id, verdict=self.verdict(speedup), measurements=measurements)

    def verdict(self, speedup: float | None) -> Verdict:
        if "accuracy" not in self.cells:
            # PyTorch writes a speedup of 0 for a model that did not run.
            return (
                Verdict(status=Status.PASS) if speedup else Verdict(status=Status.FAIL_TO_RUN, symptom="speedup is 0")
            )
        word = self.cells["accuracy"].strip()
        try:
            status = Status(word)
        except ValueError:
            # Further words of theirs: eager_1st_run_OOM, eager_2nd_run_fail, eager_variation, infra_error.
            if word.startswith("eager_"):
                return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=word)
            if word == "infra_error":
                return Verdict(status=Status.MODEL_FAIL_TO_LOAD, symptom=word)
            words = ", ".join(status.value for status in Status if not status.is_absent)
            raise _wrong(self.path, self.where, f"accuracy {word!r}", f"one of {words}") from None
        if status.is_absent:
            raise _wrong(self.path, self.where, f"accuracy {word!r}", "how a model ended")
        return Verdict(status=status, symptom="" if status is Status.PASS else word)

    def number(self, column: str) -> float | None:
        """A number that is not negative; None for an empty cell and for a NaN."""
        text = self.cells.get(column, "").strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if math.isnan(value):
            return None
        if value < 0 or math.isinf(value):
            raise _wrong(self.path, self.where, f"{column} {text!r}", "a number from 0")
        return value

    def bytes(self, column: str) -> int | None:
        value = self.number(column)
        return None if value is None else round(value * 1e9)
