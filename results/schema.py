"""The columns of a record, in one table from which SQL, data frames, CSV and Parquet are made.

`flatten` turns a record into a flat row, and `unflatten` is its inverse. Fields without a column, which a later version of
`Verdict`, `Measurements` or `Record` may add, are stored in `extra`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Compared, Status, Verdict, WorstElement

Kind = Literal["text", "int", "float", "texts", "ints"]
Section = Literal["case", "verdict", "worst", "compared", "measurements", "record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatColumn:
    """One column: the section and field of a record, its kind, and its meaning."""

    name: str
    kind: Kind
    section: Section
    field: str
    meaning: str


def _column(name: str, kind: Kind, place: str, meaning: str) -> FlatColumn:
    section, _, field = place.partition(".")
    return FlatColumn(name=name, kind=kind, section=section, field=field, meaning=meaning)  # pyright: ignore[reportArgumentType]


CASE_COLUMNS: Final = (
    _column("case_id", "text", "case.case_id", "<suite>/<program name>@<subject>, stable across runs"),
    _column("suite", "text", "case.suite", "name of the suite"),
    _column("group", "text", "case.group", "operator or model"),
    _column("name", "text", "case.name", "name of the program, unique in its suite"),
    _column("subject", "text", "case.subject", "subject with its options, as typed"),
    _column("dtype", "text", "case.dtype", "dtype axis of the suite; empty where it has none"),
    _column("direction", "text", "case.direction", "forward or backward"),
    _column("device", "text", "case.device", "cpu, cuda, ..."),
    _column("tags", "texts", "case.tags", "tags of the program"),
)

RECORD_COLUMNS: Final = (
    _column("status", "text", "verdict.status", "how the case ended"),
    _column("symptom", "text", "verdict.symptom", "one line: what was seen and what it should be"),
    _column("stage", "text", "verdict.stage", "what the worker was doing when it died or timed out"),
    _column("call", "int", "verdict.call", "index in the call plan"),
    _column("worst_where", "text", "worst.where", "path of the tensor with the worst element"),
    _column("worst_index", "ints", "worst.index", "index of the worst element"),
    _column("worst_eager", "text", "worst.eager", "its value in eager"),
    _column("worst_subject", "text", "worst.subject", "its value in the subject"),
    _column("worst_truth", "text", "worst.truth", "its fp64 value"),
    _column("worst_eager_error", "float", "worst.eager_error", "|eager - truth|"),
    _column("worst_subject_error", "float", "worst.subject_error", "|subject - truth|, or |subject - eager|"),
    _column("worst_allowed_error", "float", "worst.allowed_error", "largest error the judge accepts there"),
    _column("worst_ulp", "float", "worst.ulp", "|subject - eager| in ULP of eager's dtype"),
    _column("compared_tensors", "int", "compared.tensors", "tensors compared"),
    _column("compared_elements", "int", "compared.elements", "elements compared"),
    _column("compared_others", "int", "compared.others", "other values compared"),
    _column(
        "compared_unstable",
        "int",
        "compared.unstable_elements",
        "elements not compared, since rounding noise changes them in eager",
    ),
    _column("also", "texts", "verdict.also", "further symptoms, in the order found"),
    _column("explained", "texts", "verdict.explained", "differences seen and accepted, with their reasons"),
    _column("max_ulp", "float", "verdict.max_ulp", "largest |subject - eager| of all float elements, in ULP"),
    _column("wall_s", "float", "measurements.wall_s", "seconds, the whole case in the worker"),
    _column("bare_s", "float", "measurements.bare_s", "seconds, the calls alone"),
    _column("eager_s", "float", "measurements.eager_s", "seconds, median of the interleaved eager calls"),
    _column("subject_s", "float", "measurements.subject_s", "seconds, median of the interleaved compiled calls"),
    _column("speedup", "float", "measurements.speedup", "median of eager / subject over the interleaved pairs"),
    _column("speedup_low", "float", "measurements.speedup_low", "95 % confidence interval of speedup, lower end"),
    _column("speedup_high", "float", "measurements.speedup_high", "95 % confidence interval of speedup, upper end"),
    _column("repeats", "int", "measurements.repeats", "interleaved pairs timed"),
    _column("compile_cold_s", "float", "measurements.compile_cold_s", "seconds, first call minus one warm call"),
    _column(
        "compile_warm_s", "float", "measurements.compile_warm_s", "seconds, first call after a reset, disk caches kept"
    ),
    _column("peak_memory", "int", "measurements.peak_memory", "bytes, peak of the subject's warm call"),
    _column("eager_peak_memory", "int", "measurements.eager_peak_memory", "bytes, peak of eager's call"),
    _column("graphs", "int", "measurements.graphs", "graphs passed to the backend, all calls"),
    _column("graph_breaks", "int", "measurements.graph_breaks", "graph breaks, all calls"),
    _column("recompiles", "int", "measurements.recompiles", "recompiles, all calls"),
    # Text, since a torch seed is an unsigned 64-bit integer, which SQL does not have.
    _column("seed", "text", "record.seed", "seed of inputs and program"),
    _column("repro", "text", "record.repro", "a command that runs this case alone"),
    _column("started_at", "text", "record.started_at", "ISO 8601, UTC"),
    _column("traceback", "text", "record.traceback", "tail of the traceback of the subject's exception or crash"),
    _column("schema_version", "int", "record.schema_version", "schema the record was written with"),
)

FLAT_COLUMNS: Final = CASE_COLUMNS + RECORD_COLUMNS
FLAT_NAMES: Final = tuple(column.name for column in FLAT_COLUMNS)

_SECTION_TYPES: Final[Mapping[Section, type]] = {
    "verdict": Verdict,
    "worst": WorstElement,
    "compared": Compared,
    "measurements": Measurements,
    "record": Record,
}
# Fields that are a whole section or identify the case, and so have neither a column nor a place in `extra`.
_STRUCTURE: Final = frozenset({"verdict", "worst", "compared", "measurements", "run_id"}) | {
    column.field for column in CASE_COLUMNS
}
_BY_SECTION: Final = {
    section: tuple(column for column in RECORD_COLUMNS if column.section == section) for section in _SECTION_TYPES
}
# Fields without a column, with the default that is not written.
_EXTRA_FIELDS: Final = {
    section: tuple(
        f for f in fields(cls) if f.name not in _STRUCTURE and f.name not in {c.field for c in _BY_SECTION[section]}
    )
    for section, cls in _SECTION_TYPES.items()
}


def flatten(record: Record) -> dict[str, Any]:
    """A flat row with every name of FLAT_NAMES, and `extra`, a JSON object of the fields without a column ("" if empty).

    Lists become tuples, the status a word, the seed text. NaN stays NaN.
    """
    verdict = record.verdict
    row: dict[str, Any] = {column.name: getattr(record, column.field) for column in CASE_COLUMNS}
    extra: dict[str, dict[str, Any]] = {}
    sections = ("verdict", verdict), ("worst", verdict.worst), ("compared", verdict.compared)
    for section, value in (*sections, ("measurements", record.measurements), ("record", record)):
        for column in _BY_SECTION[section]:
            row[column.name] = None if value is None else getattr(value, column.field)
        if _EXTRA_FIELDS[section] and value is not None:
            kept = {f.name: getattr(value, f.name) for f in _EXTRA_FIELDS[section]}
            kept = {f.name: _plain(kept[f.name]) for f in _EXTRA_FIELDS[section] if kept[f.name] != f.default}
            if kept:
                extra[section] = kept
    row["status"] = verdict.status.value
    row["seed"] = str(record.seed)
    row["extra"] = json.dumps(extra) if extra else ""
    return row


def _plain(value: Any) -> Any:
    """The value for JSON: tuples of dataclasses become lists of objects."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def unflatten(row: Mapping[str, Any], *, run_id: str) -> Record:
    """The inverse of `flatten`. `row` may have lists instead of tuples.

    Raises UsageError for a row of a newer schema, as `Record.from_json` does.
    """
    extra = json.loads(row["extra"]) if row.get("extra") else {}
    parts = {
        section: {column.field: row[column.name] for column in columns} | extra.get(section, {})
        for section, columns in _BY_SECTION.items()
    }
    worst = parts["worst"] if parts["worst"]["where"] is not None else None
    data = parts["record"] | {column.field: row[column.name] for column in CASE_COLUMNS}
    data |= {
        "run_id": run_id,
        "seed": int(row["seed"]),
        "verdict": parts["verdict"] | {"worst": worst, "compared": parts["compared"]},
        "measurements": parts["measurements"],
    }
    return Record.from_json(data)


# ------------------------------------------------------------------------------------------------------- SQL tables


class SafeText(TypeDecorator[str]):
    """Text for every database: NUL and lone surrogates, which occur in tracebacks, become backslash escapes."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


class JsonList(TypeDecorator[tuple[Any, ...]]):
    """A tuple of strings or integers, as JSON text; NULL for None."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Iterable[Any] | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return json.dumps(list(value)) if value else "[]"

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> tuple[Any, ...] | None:
        if value is None:
            return None
        return () if value == "[]" else tuple(json.loads(value))


# Classes, not instances, since each column needs its own type object.
_SQL_TYPES: Final[Mapping[Kind, type[sa.types.TypeEngine[Any]]]] = {
    "text": SafeText,
    "int": sa.BigInteger,
    "float": sa.Double,
    "texts": JsonList,
    "ints": JsonList,
}
_SQL_NAMES: Final = {"group": "group_name"}  # GROUP would have to be quoted in queries

METADATA: Final = sa.MetaData()

META: Final = sa.Table(
    "torch_oracle_meta",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", SafeText, nullable=False),
)

RUNS: Final = sa.Table(
    "runs",
    METADATA,
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=True),  # the order in which runs began
    sa.Column("run_id", SafeText, nullable=False, unique=True),
    sa.Column("state", sa.String(16), nullable=False),  # RunState
    sa.Column("started_at", sa.String(40), nullable=False),
    sa.Column("ended_at", sa.String(40)),
    sa.Column("environment", SafeText, nullable=False),  # JSON
    sa.Column("arguments", SafeText, nullable=False),  # JSON
)

PROGRAMS: Final = sa.Table(
    "programs",
    METADATA,
    sa.Column("program_hash", sa.String(64), primary_key=True),  # SHA-256 of `program`
    sa.Column("program", SafeText, nullable=False),  # JSON, stored once for all subjects and runs
)


def _sql_columns(columns: Iterable[FlatColumn]) -> list[sa.Column[Any]]:
    # Columns of a case are never NULL; those of a record may be, except for the status.
    return [
        sa.Column(
            _SQL_NAMES.get(column.name, column.name),
            _SQL_TYPES[column.kind](),
            key=column.name,
            nullable=column.section != "case" and column.name != "status",
        )
        for column in columns
    ]


CASES: Final = sa.Table(
    "cases",
    METADATA,
    sa.Column("run", sa.ForeignKey(RUNS.c.run), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),  # planned order
    *_sql_columns(CASE_COLUMNS),
    sa.Column("program_hash", sa.ForeignKey(PROGRAMS.c.program_hash), nullable=False),
    sa.UniqueConstraint("run", "case_id"),
)

RECORDS: Final = sa.Table(
    "records",
    METADATA,
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    *_sql_columns(RECORD_COLUMNS),
    sa.Column("extra", SafeText, nullable=False),
    # Names of the columns that are NaN: SQLite stores NaN as NULL, and None must stay distinct.
    sa.Column("nan_columns", JsonList, nullable=False),
    sa.ForeignKeyConstraint(("run", "ordinal"), (CASES.c.run, CASES.c.ordinal)),
)
sa.Index("records_by_status", RECORDS.c.run, RECORDS.c.status)

# One row per planned case, for queries by hand. A case without a record is 'missing' in a complete run, and 'not_run' in another
# one. Databases made before `not_run` existed keep their view, with 'missing' in both.
RESULTS_VIEW: Final = "CREATE VIEW results AS SELECT runs.run_id, {cases}, {records} FROM cases JOIN runs ON runs.run = cases.run LEFT JOIN records ON records.run = cases.run AND records.ordinal = cases.ordinal".format(  # noqa: E501  one SQL statement
    cases=", ".join(f"cases.{_SQL_NAMES.get(column.name, column.name)}" for column in CASE_COLUMNS),
    records=", ".join(
        f"COALESCE(records.status, CASE runs.state WHEN 'complete' THEN '{Status.MISSING.value}'"
        f" ELSE '{Status.NOT_RUN.value}' END) AS status"
        if column.name == "status"
        else f"records.{column.name}"
        for column in RECORD_COLUMNS
    ),
)

_INTS: Final = tuple(column.name for column in RECORD_COLUMNS if column.kind == "int")
_FLOATS: Final = tuple(column.name for column in RECORD_COLUMNS if column.kind == "float")


def record_row(record: Record, *, run: int, ordinal: int) -> dict[str, Any]:
    """The row of RECORDS for a record. Numbers become int and float, since SQLite stores a numpy integer as a blob."""
    row = flatten(record)
    for column in CASE_COLUMNS:
        del row[column.name]
    for name in _INTS:
        if row[name] is not None:
            row[name] = int(row[name])
    nan_columns = []
    for name in _FLOATS:
        if row[name] is not None:
            row[name] = float(row[name])
            if math.isnan(row[name]):
                nan_columns.append(name)
    return row | {"run": run, "ordinal": ordinal, "nan_columns": nan_columns}


def case_row(case: PlannedCase, *, run: int, ordinal: int, program_hash: str) -> dict[str, Any]:
    """The row of CASES for a planned case."""
    row: dict[str, Any] = {column.name: getattr(case, column.field) for column in CASE_COLUMNS}
    return row | {"run": run, "ordinal": ordinal, "program_hash": program_hash}
