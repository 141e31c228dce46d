"""Queries for what a whole run is asked for, so that it is counted and filtered in the database and not in Python.

SQL, and no data frame library that reads the whole run: what `show` and `compare` print is a few counts and the rows that differ,
and a database has an index for them. The remaining rows are narrow.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd
import sqlalchemy as sa

from oracle.records import Measurements
from oracle.verdict import BiasSum, Status, Verdict
from results.bias import BiasFinding, BiasKey, add_sum, findings_of_sums
from results.schema import CASES, FLAT_COLUMNS, RECORD_COLUMNS, RECORDS, RUNS
from results.store import COMPLETE, SAME_CASE, RunInfo, Store, absent_verdict
from results.tables import DTYPES

FINDINGS: Final = tuple(status.value for status in Status if status.is_finding)
_KINDS: Final = {column.name: column.kind for column in FLAT_COLUMNS}
_BLOCK: Final = 5000  # rows that are fetched at once
_MOST_PARAMETERS: Final = 500  # case ids in one query: databases limit the number of parameters

# Columns by which findings are grouped and listed.
NARROW: Final = (
    *("case_id", "suite", "group", "name", "subject", "dtype", "direction"),
    *("status", "symptom", "issue", "observed"),
)
# Columns of a finding in full, as `results.tables.failures` shows it.
DETAILED: Final = (
    *NARROW,
    *("stage", "worst_where", "worst_index", "worst_eager", "worst_subject", "worst_truth", "worst_eager_error"),
    *("worst_subject_error", "worst_allowed_error", "worst_ulp", "repro"),
)
# Columns of speed.
TIMED: Final = (
    *("suite", "subject", "status", "speedup", "speedup_low", "speedup_high", "compile_cold_s", "compile_warm_s"),
    *("peak_memory", "eager_peak_memory", "graph_breaks", "recompiles"),
)
TIMED_BY_CASE: Final = ("case_id", "eager_s", "subject_s", *TIMED)


def case_filter(glob: str) -> sa.ColumnElement[bool]:
    """Whether a case id equals the glob or matches it, as `results.report.is_match`."""
    if glob == "*":
        return sa.true()
    return sa.or_(CASES.c.case_id == glob, CASES.c.case_id.regexp_match(_regex(glob)))


def _regex(glob: str) -> str:
    """The glob as a regular expression that Python and PostgreSQL read alike, which that of `fnmatch.translate` is not."""
    # A set is closed by a bracket that is not its first character; else the bracket stands for itself.
    pieces = re.findall(r"\[!?.[^\]]*\]|.", glob, re.DOTALL)
    return f"(?s)^{''.join(map(_regex_of_piece, pieces))}\\Z"


def _regex_of_piece(piece: str) -> str:
    if len(piece) > 1:
        return fnmatch.translate(piece).removeprefix("(?s:").removesuffix(")\\Z")
    return {"*": ".*", "?": "."}.get(piece) or re.escape(piece)


def _planned(run: RunInfo, glob: str = "*") -> tuple[sa.ColumnElement[bool], ...]:
    return (
        CASES.c.run == sa.select(RUNS.c.run).where(RUNS.c.run_id == run.run_id).scalar_subquery(),
        case_filter(glob),
    )


def _is_finding(run: RunInfo) -> sa.ColumnElement[bool]:
    is_finding = RECORDS.c.status.in_(FINDINGS)
    return sa.or_(is_finding, RECORDS.c.status.is_(None)) if run.state == COMPLETE else is_finding


def status_counts(store: Store, run: RunInfo, glob: str = "*") -> pd.DataFrame:
    """One row per suite, subject and status that occurs, with the number of `cases`, as `results.tables.status_counts`."""
    keys = (CASES.c.suite, CASES.c.subject, RECORDS.c.status)
    query = (
        sa.select(*keys, sa.func.count())
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*_planned(run, glob))
        .group_by(*keys)
    )
    absent = absent_verdict(run.state).status.value
    with store.reading() as connection:
        rows = [
            (suite, subject, status or absent, cases) for suite, subject, status, cases in connection.execute(query)
        ]
    return pd.DataFrame(sorted(rows), columns=["suite", "subject", "status", "cases"])


def notable_rows(store: Store, run: RunInfo, glob: str = "*", *, columns: Sequence[str] = NARROW) -> pd.DataFrame:
    """The cases that do not just pass, and all cases of programs with a finding, in planned order.

    Columns: `columns`, and `is_finding` and `is_silent` of the status. It is all that grouping of findings, the first wrong rungs
    and the tables of `show` need of a run's cases.
    """
    wrong = (
        sa.select(CASES.c.suite, CASES.c.name)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*_planned(run, glob), _is_finding(run))
    )
    is_notable = sa.or_(
        RECORDS.c.status.is_(None),
        RECORDS.c.status != Status.PASS.value,
        sa.tuple_(CASES.c.suite, CASES.c.name).in_(wrong),
    )
    table = _frame(store, run, columns, _planned(run, glob), is_notable)
    by_word = {status.value: status for status in Status}
    statuses = [by_word[word] for word in table["status"]]
    table["is_finding"] = pd.Series([status.is_finding for status in statuses], dtype="bool")
    table["is_silent"] = pd.Series([status.is_silent for status in statuses], dtype="bool")
    return table


def passing_rows(store: Store, run: RunInfo, glob: str = "*", *, columns: Sequence[str] = TIMED) -> pd.DataFrame:
    """The passing cases that have a speed or a compile time, or broke the graph or were compiled again, in planned order."""
    is_measured = sa.or_(
        RECORDS.c.speedup.is_not(None),
        RECORDS.c.compile_cold_s.is_not(None),
        RECORDS.c.graph_breaks > 0,
        RECORDS.c.recompiles > 0,
    )
    return _frame(store, run, columns, _planned(run, glob), RECORDS.c.status == Status.PASS.value, is_measured)


def _frame(
    store: Store,
    run: RunInfo,
    columns: Sequence[str],
    planned: Sequence[sa.ColumnElement[bool]],
    *conditions: sa.ColumnElement[bool],
) -> pd.DataFrame:
    query = (
        sa.select(*(_column(name) for name in columns), RECORDS.c.nan_columns)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned, *conditions)
        .order_by(CASES.c.ordinal)
    )
    found: dict[str, list[Any]] = {name: [] for name in (*columns, "nan_columns")}
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=_BLOCK).execute(query).partitions():
            for values, block_values in zip(found.values(), zip(*block, strict=True), strict=True):
                values.extend(block_values)
    for row, nans in enumerate(found.pop("nan_columns")):
        for name in nans or ():
            if name in found:
                found[name][row] = float("nan")
    absent = absent_verdict(run.state)
    for row, status in enumerate(found["status"]):
        if status is None:
            found["status"][row] = absent.status.value
            for name, value in (("symptom", absent.symptom), ("issue", ""), ("observed", ""), ("repro", "")):
                if name in found:
                    found[name][row] = value
    return pd.DataFrame({name: pd.Series(values, dtype=DTYPES[_KINDS[name]]) for name, values in found.items()})


def _column(name: str) -> sa.ColumnElement[Any]:
    return CASES.c[name] if name in CASES.c else RECORDS.c[name]


# ------------------------------------------------------------------------------------------------- systematic errors

# Of each database: a field of the first error sum in `extra`, and whether there is a second one.
_FIRST_SUM: Final = {
    "sqlite": (
        "json_extract(records.extra, '$.verdict.bias[0].{field}')",
        "json_extract(records.extra, '$.verdict.bias[1]') IS NOT NULL",
    ),
    "postgresql": (
        "(CAST(records.extra AS jsonb) #>> '{{verdict,bias,0,{field}}}')",
        "CAST(records.extra AS jsonb) #> '{verdict,bias,1}' IS NOT NULL",
    ),
}
_NUMBERS: Final = {"eps": "double precision", "tensors": "bigint", "weight": "bigint"} | dict.fromkeys(
    ("subject", "eager", "variance"), "double precision"
)
_HAS_BIAS: Final = """{find}(records.extra, '"bias"') > 0"""
# What the databases' JSON cannot hold and Python's can.
_IS_CLEAN: Final = " AND ".join(f"{{find}}(records.extra, '{word}') = 0" for word in ("NaN", "Infinity", "\\u0000"))
_FIND: Final = {"sqlite": "instr", "postgresql": "strpos"}


def bias_findings(store: Store, run: RunInfo, glob: str = "*") -> list[BiasFinding]:
    """The systematic errors of a run, as `results.bias.find_bias`.

    The database adds the sums of the records that have one; the few with several, or with a NaN, are read.
    """
    sums: dict[BiasKey, BiasSum] = {}
    cases: dict[BiasKey, int] = {}
    labels = (CASES.c.suite, CASES.c.group, CASES.c.subject, CASES.c.device)
    joined = sa.join(CASES, RECORDS, SAME_CASE)
    conditions = (*_planned(run, glob), RECORDS.c.status.not_in(FINDINGS))
    with store.reading() as connection:
        field, has_second = _FIRST_SUM[connection.dialect.name]
        find = _FIND[connection.dialect.name]
        has_bias, is_clean = _HAS_BIAS.format(find=find), _IS_CLEAN.format(find=find)
        # CASE, since nothing else keeps a database from reading text as JSON that is none.
        is_simple = f"CASE WHEN {has_bias} AND {is_clean} THEN NOT ({has_second}) ELSE 1 = 0 END"
        dtype = sa.literal_column(field.format(field="dtype"))
        numbers = {name: f"CAST({field.format(field=name)} AS {kind})" for name, kind in _NUMBERS.items()}
        added = [sa.literal_column(f"{'min' if name == 'eps' else 'sum'}({text})") for name, text in numbers.items()]
        query = (
            sa.select(*labels, dtype, sa.func.count(), *added)
            .select_from(joined)
            .where(*conditions, sa.text(is_simple))
            .group_by(*labels, dtype)
            .order_by(sa.func.min(CASES.c.ordinal))
        )
        for row in connection.execute(query):
            *key, count, eps, tensors, weight, subject, eager, variance = tuple(row)
            sums[tuple(key)] = BiasSum(
                dtype=key[-1],
                eps=eps,
                tensors=int(tensors),
                weight=int(weight),
                subject=subject,
                eager=eager,
                variance=variance,
            )
            cases[tuple(key)] = count
        others = sa.text(f"{has_bias} AND NOT ({is_simple})")
        for row in connection.execute(
            sa.select(*labels, RECORDS.c.extra).select_from(joined).where(*conditions, others)
        ):
            *labels_of_row, extra = tuple(row)
            for one in json.loads(extra).get("verdict", {}).get("bias", ()):
                add_sum(sums, cases, (*labels_of_row, one["dtype"]), BiasSum(**one))
    return findings_of_sums(sums, cases)


def rerun_findings(store: Store, run: RunInfo, match: str = "*") -> list[tuple[str, Verdict]]:
    """Case id and verdict (status, symptom and reruns) of the findings that were run again, in planned order."""
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.status, RECORDS.c.symptom, RECORDS.c.extra)
        .join_from(CASES, RECORDS, SAME_CASE)
        .where(*_planned(run, match), RECORDS.c.status.in_(FINDINGS), RECORDS.c.extra.contains('"reruns"'))
        .order_by(CASES.c.ordinal)
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
    found = [
        (
            case_id,
            Verdict(
                status=Status(status),
                symptom=symptom,
                reruns=tuple(json.loads(extra).get("verdict", {}).get("reruns", ())),
            ),
        )
        for case_id, status, symptom, extra in rows
    ]
    return [(case_id, verdict) for case_id, verdict in found if verdict.reruns]


# ------------------------------------------------------------------------------------------------------- comparison


class ComparedRow(NamedTuple):
    """What a comparison reads of one planned case."""

    case_id: str
    ordinal: int  # planned order
    status: str
    symptom: str
    is_timed: bool = False
    compile_cold_s: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    program_hash: str = ""  # "" where records alone are compared

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """The counts of which every difference is looked at."""
        return self.graph_breaks, self.recompiles


# Whether a speedup is a positive number. NaN is NULL in SQLite, and larger than every number in PostgreSQL.
_IS_TIMED: Final = sa.and_(RECORDS.c.speedup > 0, RECORDS.c.speedup < sys.float_info.max)


def compared_rows(store: Store, run: RunInfo) -> Iterator[ComparedRow]:
    """All planned cases of a run by case id, in the order of their code points, as rows arrive from the database."""
    absent = absent_verdict(run.state)
    with store.reading() as connection:
        case_id = CASES.c.case_id if connection.dialect.name == "sqlite" else sa.collate(CASES.c.case_id, "C")
        query = (
            sa.select(
                CASES.c.case_id,
                CASES.c.ordinal,
                sa.func.coalesce(RECORDS.c.status, absent.status.value),
                sa.case((RECORDS.c.status.is_(None), absent.symptom), else_=RECORDS.c.symptom),
                sa.case((_IS_TIMED, True), else_=False),
                RECORDS.c.compile_cold_s,
                RECORDS.c.graph_breaks,
                RECORDS.c.recompiles,
                CASES.c.program_hash,
            )
            .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
            .where(*_planned(run))
            .order_by(case_id)
        )
        for block in connection.execution_options(yield_per=_BLOCK).execute(query).partitions():
            yield from map(ComparedRow._make, block)


_MEASURED: Final = tuple(column for column in RECORD_COLUMNS if column.section == "measurements")


def measured_rows(store: Store, run: RunInfo, others: Sequence[str] = ()) -> dict[str, Measurements]:
    """What was measured of the passing cases that were timed, and of `others` among the passing ones, by case id."""
    found = _measured_rows(store, run, _IS_TIMED)
    left = [case_id for case_id in others if case_id not in found]
    for first in range(0, len(left), _MOST_PARAMETERS):
        found |= _measured_rows(store, run, CASES.c.case_id.in_(left[first : first + _MOST_PARAMETERS]))
    return found


def _measured_rows(store: Store, run: RunInfo, condition: sa.ColumnElement[bool]) -> dict[str, Measurements]:
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.extra, RECORDS.c.nan_columns, *(RECORDS.c[c.name] for c in _MEASURED))
        .join_from(CASES, RECORDS, SAME_CASE)
        .where(*_planned(run), RECORDS.c.status == Status.PASS.value, condition)
    )
    found: dict[str, Measurements] = {}
    with store.reading() as connection:
        for row in connection.execution_options(yield_per=_BLOCK).execute(query):
            case_id, extra, nans, *numbers = tuple(row)
            fields = {column.field: value for column, value in zip(_MEASURED, numbers, strict=True)}
            fields.update((column.field, math.nan) for column in _MEASURED if column.name in nans)
            if extra:
                fields.update(json.loads(extra).get("measurements", {}))
            found[case_id] = Measurements(**fields)
    return found
