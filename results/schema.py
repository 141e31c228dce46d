"""The columns of a record, in one table from which SQL, data frames, CSV and Parquet are made.

`flatten` turns a record into a flat row, and `unflatten` is its inverse. Fields without a column, which a later version of
`Verdict`, `Measurements` or `Record` may add, are stored in `extra`.

A change of the SQL tables raises DATABASE_VERSION and brings a migration (`results.migrations`). Views are made anew by each
migration, so that they are written here only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
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
    _column("issue", "text", "verdict.issue", "id of the known issue that the ledger names; empty for none"),
    _column("observed", "text", "verdict.observed", "status without the ledger, for a known issue; else empty"),
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
_EXTRA_FIELDS: Final[Mapping[str, tuple[Field[Any], ...]]] = {
    section: tuple(
        f for f in fields(cls) if f.name not in _STRUCTURE and f.name not in {c.field for c in _BY_SECTION[section]}
    )
    for section, cls in _SECTION_TYPES.items()
}


def flatten(record: Record) -> dict[str, Any]:
    """A flat row with every name of FLAT_NAMES, and `extra`, a JSON object of the fields without a column ("" if empty).

    Lists become tuples, the status a word, the seed text. NaN stays NaN.
    """
    row = dict(zip(CASE_NAMES, _case_values(record), strict=True))
    row |= zip(RECORD_NAMES, _record_values(record), strict=True)
    row["extra"] = _extra(record)
    return row


CASE_NAMES: Final = tuple(column.name for column in CASE_COLUMNS)
RECORD_NAMES: Final = tuple(column.name for column in RECORD_COLUMNS)
_case_values: Final = attrgetter(*(column.field for column in CASE_COLUMNS))
# Consecutive columns of one section, with a function that reads them all from that section.
_READERS: Final = tuple(
    (section, len(fields), attrgetter(*fields) if len(fields) > 1 else attrgetter(fields[0], fields[0]))
    for section, fields in (
        (section, [column.field for column in columns])
        for section, columns in groupby(RECORD_COLUMNS, key=lambda column: column.section)
    )
)
_STATUS: Final = RECORD_NAMES.index("status")
_SEED: Final = RECORD_NAMES.index("seed")


def _sections(record: Record) -> dict[str, Any]:
    verdict = record.verdict
    return {
        "verdict": verdict,
        "worst": verdict.worst,
        "compared": verdict.compared,
        "measurements": record.measurements,
        "record": record,
    }


def _record_values(record: Record) -> list[Any]:
    """The values of RECORD_COLUMNS, None for those of an absent section."""
    sections = _sections(record)
    values: list[Any] = []
    for section, count, read in _READERS:
        value = sections[section]
        values.extend(read(value)[:count] if value is not None else [None] * count)
    values[_STATUS] = record.verdict.status.value
    values[_SEED] = str(record.seed)
    return values


def _extra(record: Record) -> str:
    extra: dict[str, dict[str, Any]] = {}
    for section, value in _sections(record).items():
        if value is not None:
            kept = {f.name: _plain(own) for f in _EXTRA_FIELDS[section] if (own := getattr(value, f.name)) != f.default}
            if kept:
                extra[section] = kept
    return json.dumps(extra) if extra else ""


def _plain(value: Any) -> Any:
    """The value for JSON: tuples of dataclasses become lists of objects."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {name: _plain(getattr(value, name)) for name in _names(type(value))}


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


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


def safe_text(value: str) -> str:
    """The text as every database can hold it. Also makes a plain string of a subclass of str."""
    if value.isascii() and "\0" not in value:
        return str(value)
    return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


class SafeText(TypeDecorator[str]):
    """Text for every database: NUL and lone surrogates, which occur in tracebacks, become backslash escapes."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else safe_text(value)


class JsonList(TypeDecorator[tuple[Any, ...]]):
    """A tuple of strings or integers, as JSON text; NULL for None."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Iterable[Any] | None, dialect: sa.Dialect) -> str | None:
        return _list_text(value)

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

METADATA: Final = sa.MetaData()  # what a row is: the `info` of a table; what a column is: its `doc`

META: Final = sa.Table(
    "torch_oracle_meta",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True, doc="schema_version, error_sums/N or past/N of run number N"),
    sa.Column("value", SafeText, nullable=False, doc="its value; of a run: JSON, what `results.kept` keeps"),
    info={"row": "one fact about the database"},
)

ERROR_SUMS: Final = "error_sums/"  # and the number of a run: keys of META
PAST: Final = "past/"

# A column of RUNS, its meaning, and where its value is in the environment: of several paths the first one that exists.
FACTS: Final[Mapping[str, tuple[str, tuple[tuple[str | int, ...], ...]]]] = {
    "torch": ("version of torch", (("worker", "torch"), ("versions", "torch"), ("torch",))),
    "torch_git": ("commit of torch", (("worker", "torch_git"),)),
    "triton": ("version of triton", (("versions", "triton"),)),
    "machine": (
        "name of the GPU, or else of the processor",
        (("worker", "devices", 0, "name"), ("cpu_model",), ("machine",), ("platform",)),
    ),
    "command": ("the command line; empty if the run was not made by one", ()),
}


def fact_at(data: Any, path: Sequence[str | int]) -> Any:
    """The value at a path of keys and indices; None where there is none."""
    for key in path:
        if isinstance(key, int):
            data = data[key] if isinstance(data, list) and key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data


def run_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """The values of the columns FACTS of RUNS that the environment says; "" for those that it does not."""
    facts: dict[str, str] = {}
    for name, (_, paths) in FACTS.items():
        values = (fact_at(environment, path) for path in paths)
        if paths:
            facts[name] = next((str(value) for value in values if isinstance(value, str | int) and value), "")
    return facts


RUNS: Final = sa.Table(
    "runs",
    METADATA,
    sa.Column(
        "run", sa.Integer, primary_key=True, autoincrement=True, doc="number of the run, in the order of their start"
    ),
    sa.Column("run_id", SafeText, nullable=False, unique=True, doc="id of the run, the same in every database"),
    sa.Column("state", sa.String(16), nullable=False, doc="planning, running, complete or interrupted"),
    sa.Column("started_at", sa.String(40), nullable=False, doc="ISO 8601, UTC"),
    sa.Column("ended_at", sa.String(40), doc="ISO 8601, UTC; NULL until the run ends"),
    sa.Column("environment", SafeText, nullable=False, doc="JSON: versions, machine, variables"),
    sa.Column("arguments", SafeText, nullable=False, doc="JSON: what the run was asked for"),
    # Facts of the environment and the arguments, for queries; "" where unknown. See `run_facts`.
    *(sa.Column(name, SafeText, nullable=False, server_default="", doc=doc) for name, (doc, _) in FACTS.items()),
    sa.Column("suites", JsonList, nullable=False, server_default="[]", doc="JSON list: suites of the planned cases"),
    sa.Column(
        "subjects", JsonList, nullable=False, server_default="[]", doc="JSON list: subjects of the planned cases"
    ),
    info={"row": "one run"},
)

PROGRAMS: Final = sa.Table(
    "programs",
    METADATA,
    sa.Column("program_hash", sa.String(64), primary_key=True, doc="SHA-256 of `program`"),
    sa.Column("program", SafeText, nullable=False, doc="JSON, stored once for all subjects and runs"),
    info={"row": "one program, as all runs with it share it"},
)


# Columns of a record that are never NULL, with the default of those that came with a migration.
_NEVER_NULL: Final[Mapping[str, str | None]] = {"status": None, "issue": "", "observed": ""}


def _sql_columns(columns: Iterable[FlatColumn]) -> list[sa.Column[Any]]:
    # Columns of a case are never NULL; those of a record may be, except for the status.
    return [
        sa.Column(
            _SQL_NAMES.get(column.name, column.name),
            _SQL_TYPES[column.kind](),
            key=column.name,
            nullable=column.section != "case" and column.name not in _NEVER_NULL,
            server_default=_NEVER_NULL.get(column.name),
            doc=column.meaning,
        )
        for column in columns
    ]


CASES: Final = sa.Table(
    "cases",
    METADATA,
    sa.Column("run", sa.ForeignKey(RUNS.c.run), primary_key=True, doc="runs.run"),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False, doc="planned order"),
    *_sql_columns(CASE_COLUMNS),
    sa.Column("program_hash", sa.ForeignKey(PROGRAMS.c.program_hash), nullable=False, doc="programs.program_hash"),
    sa.UniqueConstraint("run", "case_id"),
    info={"row": "one planned case of one run"},
)
sa.Index("cases_by_id", CASES.c.case_id, CASES.c.run)  # the history of a case

RECORDS: Final = sa.Table(
    "records",
    METADATA,
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False, doc="cases.run"),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False, doc="cases.ordinal"),
    *_sql_columns(RECORD_COLUMNS),
    sa.Column("extra", SafeText, nullable=False, doc="JSON: fields of the record that have no column; empty for none"),
    # SQLite stores NaN as NULL, and None must stay distinct.
    sa.Column("nan_columns", JsonList, nullable=False, doc="JSON list: columns that are NaN"),
    sa.ForeignKeyConstraint(("run", "ordinal"), (CASES.c.run, CASES.c.ordinal)),
    info={"row": "the result of one planned case; a case without one did not run, or was lost"},
)
# Holds all that the list of runs shows of a record, so that counting a run reads no records.
sa.Index("records_by_status_and_speed", RECORDS.c.run, RECORDS.c.status, RECORDS.c.speedup)

REVISION: Final = sa.Table(  # alembic's own table, made here so that only a migration needs to import alembic
    "alembic_version",
    METADATA,
    sa.Column("version_num", sa.String(32), primary_key=True, doc="the newest migration"),
    info={"row": "for the migrations (alembic)"},
)
DATABASE_VERSION: Final = 2  # in META, for older versions of torch-oracle, which refuse it
HEAD_REVISION: Final = "v2"  # the newest file of results/migrations/versions

_STATUS_OR_ABSENT: Final = (
    f"COALESCE(records.status, CASE runs.state WHEN 'complete' THEN '{Status.MISSING.value}'"
    f" ELSE '{Status.NOT_RUN.value}' END)"
)
_JOINED: Final = (
    "FROM cases JOIN runs ON runs.run = cases.run"
    " LEFT JOIN records ON records.run = cases.run AND records.ordinal = cases.ordinal"
)
_CASES_SQL: Final = ", ".join(f"cases.{_SQL_NAMES.get(column.name, column.name)}" for column in CASE_COLUMNS)
_RECORDS_SQL: Final = ", ".join(
    f"{_STATUS_OR_ABSENT} AS status" if column.name == "status" else f"records.{column.name}"
    for column in RECORD_COLUMNS
)
_FACTS_SQL: Final = ", ".join(f"runs.{name}" for name in FACTS)
_FINDINGS_SQL: Final = ", ".join(f"'{status.value}'" for status in Status if status.is_finding)
_PASSES_SQL: Final = f"'{Status.PASS.value}', '{Status.XPASS.value}'"

# Views for queries by hand and for dashboards: name, what a row is, and its query. docs/schema.md describes their columns.
# A case without a record is 'missing' in a complete run, and 'not_run' in another one.
VIEWS: Final[Mapping[str, tuple[str, str]]] = {
    "results": (
        "one planned case of one run, with its record",
        f"SELECT runs.run_id, {_CASES_SQL}, {_RECORDS_SQL} {_JOINED}",
    ),
    "v_latest": (
        "one planned case of the latest run, with its record",
        f"SELECT runs.run_id, {_CASES_SQL}, {_RECORDS_SQL} {_JOINED} WHERE runs.run = (SELECT max(run) FROM runs)",
    ),
    "v_case_history": (
        "one case in one run, with what the run was made with",
        "SELECT cases.case_id, runs.run, runs.run_id, runs.started_at, runs.state,"
        f" {_FACTS_SQL}, cases.program_hash, {_STATUS_OR_ABSENT} AS status, records.symptom, records.issue,"
        " records.speedup, records.speedup_low, records.speedup_high, records.compile_cold_s, records.peak_memory,"
        f" records.graphs, records.graph_breaks, records.recompiles {_JOINED}",
    ),
    "v_runs": (
        "one run with the counts of its cases",
        "SELECT runs.run, runs.run_id, runs.state, runs.started_at, runs.ended_at, runs.suites, runs.subjects,"
        f" {_FACTS_SQL}, (SELECT count(*) FROM cases WHERE cases.run = runs.run) AS planned,"
        " count(records.status) AS recorded,"
        f" COALESCE(sum(CASE WHEN records.status IN ({_PASSES_SQL}) THEN 1 ELSE 0 END), 0) AS passed,"
        f" COALESCE(sum(CASE WHEN records.status IN ({_FINDINGS_SQL}) THEN 1 ELSE 0 END), 0) AS new,"
        f" COALESCE(sum(CASE WHEN records.status = '{Status.KNOWN.value}' THEN 1 ELSE 0 END), 0) AS known"
        " FROM runs LEFT JOIN records ON records.run = runs.run GROUP BY runs.run",
    ),
}

_INTS: Final = tuple(i for i, column in enumerate(RECORD_COLUMNS) if column.kind == "int")
_FLOATS: Final = tuple(i for i, column in enumerate(RECORD_COLUMNS) if column.kind == "float")
_TEXTS: Final = tuple(i for i, column in enumerate(RECORD_COLUMNS) if column.kind == "text")
_LISTS: Final = tuple(i for i, column in enumerate(RECORD_COLUMNS) if column.kind in ("texts", "ints"))
RECORD_SQL_NAMES: Final = ("run", "ordinal", *RECORD_NAMES, "extra", "nan_columns")
CASE_SQL_NAMES: Final = ("run", "ordinal", *(_SQL_NAMES.get(name, name) for name in CASE_NAMES), "program_hash")


def record_values(record: Record, *, run: int, ordinal: int) -> tuple[Any, ...]:
    """The values of RECORD_SQL_NAMES as a database driver takes them.

    Numbers become int and float, since SQLite stores a numpy integer as a blob.
    """
    values = _record_values(record)
    for i in _INTS:
        if values[i] is not None:
            values[i] = int(values[i])
    nan_columns = []
    for i in _FLOATS:
        if values[i] is not None:
            values[i] = value = float(values[i])
            if value != value:
                nan_columns.append(RECORD_NAMES[i])
    for i in _TEXTS:
        if values[i] is not None:
            values[i] = safe_text(values[i])
    for i in _LISTS:
        values[i] = _list_text(values[i])
    return (run, ordinal, *values, _extra(record), _list_text(nan_columns))


def case_values(case: PlannedCase, *, run: int, ordinal: int, program_hash: str) -> tuple[Any, ...]:
    """The values of CASE_SQL_NAMES for a planned case, as a database driver takes them."""
    values = [_list_text(value) if isinstance(value, tuple) else safe_text(value) for value in _case_values(case)]
    return (run, ordinal, *values, program_hash)


def _list_text(value: Iterable[Any] | None) -> str | None:
    if value is None:
        return None
    return json.dumps(list(value)) if value else "[]"
