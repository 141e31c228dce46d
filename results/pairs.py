"""Reads two runs case by case for a comparison: only the cases that differ, and their measurements.

If one connection reaches both runs, since they are in one database or in two SQLite files, the database joins them, so that cases
that just pass in both never leave it. Else both runs are read in the order of their case ids, side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa

from oracle.records import Measurements
from oracle.verdict import Status
from results.engine import attached, reading
from results.queries import BLOCK, MOST_PARAMETERS, planned_in
from results.schema import CASES, RECORDS
from results.speed.of_records import LEAST_SECONDS
from results.store import SAME_CASE, RunInfo, Store, absent_verdict

_PASS: Final = Status.PASS.value


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


Pair: TypeAlias = tuple[ComparedRow | None, ComparedRow | None]  # one case in base and in head; None where not planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The cases of two runs."""

    differing: Sequence[Pair]  # in no order
    alike: int  # number of the others: they pass in both, with nothing measured that could be compared


def is_alike(old: ComparedRow | None, new: ComparedRow | None) -> bool:
    """Whether there is nothing to say of a case: one program, which passes in both runs, and no measurements to judge."""
    return (
        old is not None
        and new is not None
        and old.program_hash == new.program_hash
        and old.status == new.status == _PASS
        and not may_have_moved(old, new)
    )


def may_have_moved(old: ComparedRow, new: ComparedRow) -> bool:
    """Whether both were timed, or counts or compile times differ by as much as a verdict needs."""
    if (old.is_timed and new.is_timed) or (old.graph_breaks, old.recompiles) != (new.graph_breaks, new.recompiles):
        return True
    cold = old.compile_cold_s, new.compile_cold_s
    return cold[0] is not None and cold[1] is not None and abs(cold[1] - cold[0]) >= LEAST_SECONDS


def pairs_of(base: Iterable[ComparedRow], head: Iterable[ComparedRow]) -> Pairs:
    """The cases of two runs, both in the order of their case ids."""
    differing: list[Pair] = []
    alike = 0
    for pair in _side_by_side(base, head):
        if is_alike(*pair):
            alike += 1
        else:
            differing.append(pair)
    return Pairs(differing=differing, alike=alike)


def _side_by_side(base: Iterable[ComparedRow], head: Iterable[ComparedRow]) -> Iterator[Pair]:
    olds, news = iter(base), iter(head)
    old, new = next(olds, None), next(news, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old.case_id < new.case_id):
            yield old, None
            old = next(olds, None)
        elif old is None or new.case_id < old.case_id:
            yield None, new
            new = next(news, None)
        else:
            yield old, new
            old, new = next(olds, None), next(news, None)


def read_pairs(base: Store, base_run: RunInfo, head: Store, head_run: RunInfo) -> Pairs:
    """The cases of two runs in one or two databases."""
    if base.location == head.location:
        with head.reading() as connection:
            return _joined(connection, base_run, head_run, schema="")
    if base.location.path is not None and head.location.path is not None:
        with (
            attached(head.location.path, base.location.path, name="base") as engine,
            reading(engine, base.location) as connection,
        ):
            return _joined(connection, base_run, head_run, schema="base.")
    return pairs_of(compared_rows(base, base_run), compared_rows(head, head_run))


# ---------------------------------------------------------------------------------------------- one case beside the other

# Whether a speedup is a positive number. NaN is NULL in SQLite, and larger than every number in PostgreSQL.
_IS_TIMED: Final = sa.and_(RECORDS.c.speedup > 0, RECORDS.c.speedup < sys.float_info.max)
_TIMED_SQL: Final = f"CASE WHEN {{0}}.speedup > 0 AND {{0}}.speedup < {sys.float_info.max!r} THEN 1 ELSE 0 END"
_MEASURED_SQL: Final = f"{_TIMED_SQL}, {{0}}.compile_cold_s, {{0}}.graph_breaks, {{0}}.recompiles"
_RUN_SQL: Final = "(SELECT run FROM {0}runs WHERE run_id = :{1})"
_ALIKE_SQL: Final = f"""
    old.status = '{_PASS}' AND new.status = '{_PASS}' AND old_case.program_hash = new_case.program_hash
    AND {_TIMED_SQL.format("old")} + {_TIMED_SQL.format("new")} < 2
    AND COALESCE(old.graph_breaks, -1) = COALESCE(new.graph_breaks, -1)
    AND COALESCE(old.recompiles, -1) = COALESCE(new.recompiles, -1)
    AND CASE WHEN abs(new.compile_cold_s - old.compile_cold_s) >= {LEAST_SECONDS} THEN 1 ELSE 0 END = 0"""
# CASE, since a comparison with NULL, for a case or a record that is not there, is neither true nor false.
_DIFFERING_SQL: Final = f"""
    SELECT old_case.case_id, old_case.ordinal, old.status, old.symptom, {_MEASURED_SQL.format("old")}, old_case.program_hash,
           new_case.case_id, new_case.ordinal, new.status, new.symptom, {_MEASURED_SQL.format("new")}, new_case.program_hash
    FROM {{0}}cases AS old_case
    LEFT JOIN cases AS new_case ON new_case.run = {_RUN_SQL.format("", "head")} AND new_case.case_id = old_case.case_id
    LEFT JOIN {{0}}records AS old ON old.run = old_case.run AND old.ordinal = old_case.ordinal
    LEFT JOIN records AS new ON new.run = new_case.run AND new.ordinal = new_case.ordinal
    WHERE old_case.run = {_RUN_SQL.format("{0}", "base")} AND CASE WHEN {_ALIKE_SQL} THEN 1 ELSE 0 END = 0"""
_NEW_SQL: Final = f"""
    SELECT new_case.case_id, new_case.ordinal, new.status, new.symptom, {_MEASURED_SQL.format("new")}, new_case.program_hash
    FROM cases AS new_case LEFT JOIN records AS new ON new.run = new_case.run AND new.ordinal = new_case.ordinal
    WHERE new_case.run = {_RUN_SQL.format("", "head")}
    AND NOT EXISTS (SELECT 1 FROM {{0}}cases AS old_case
                    WHERE old_case.run = {_RUN_SQL.format("{0}", "base")} AND old_case.case_id = new_case.case_id)"""
_COUNT_SQL: Final = f"SELECT count(*) FROM {{0}}cases WHERE run = {_RUN_SQL}"


def _joined(connection: sa.Connection, base: RunInfo, head: RunInfo, *, schema: str) -> Pairs:
    """The cases of two runs that one connection reaches. `schema` is where base's tables are: "" or a name with a point."""
    ids = {"base": base.run_id, "head": head.run_id}
    width = len(ComparedRow._fields)
    differing: list[Pair] = []
    for row in _blocks(connection, _DIFFERING_SQL.format(schema), ids):
        new = None if row[width] is None else _compared(row[width:], head)
        differing.append((_compared(row[:width], base), new))
    planned = [
        connection.execute(sa.text(_COUNT_SQL.format(where, which)), {which: ids[which]}).scalar_one()
        for where, which in ((schema, "base"), ("", "head"))
    ]
    alike = planned[0] - len(differing)
    if alike + sum(new is not None for _, new in differing) < planned[1]:
        differing += [(None, _compared(row, head)) for row in _blocks(connection, _NEW_SQL.format(schema), ids)]
    return Pairs(differing=differing, alike=alike)


def _blocks(connection: sa.Connection, query: str, parameters: dict[str, str]) -> Iterator[Sequence[Any]]:
    found = connection.execution_options(yield_per=BLOCK).execute(sa.text(query), parameters)
    for block in found.partitions():
        yield from map(tuple, block)


def _compared(values: Sequence[Any], run: RunInfo) -> ComparedRow:
    case_id, ordinal, status, symptom, is_timed, *rest = values
    if status is None:
        absent = absent_verdict(run.state)
        status, symptom = absent.status.value, absent.symptom
    return ComparedRow(case_id, ordinal, status, symptom, bool(is_timed), *rest)


def compared_rows(store: Store, run: RunInfo) -> Iterator[ComparedRow]:
    """All planned cases of a run by case id, in the order of their code points, as rows arrive from the database."""
    with store.reading() as connection:
        case_id = CASES.c.case_id if connection.dialect.name == "sqlite" else sa.collate(CASES.c.case_id, "C")
        query = (
            sa.select(
                CASES.c.case_id,
                CASES.c.ordinal,
                RECORDS.c.status,
                RECORDS.c.symptom,
                sa.case((_IS_TIMED, True), else_=False),
                RECORDS.c.compile_cold_s,
                RECORDS.c.graph_breaks,
                RECORDS.c.recompiles,
                CASES.c.program_hash,
            )
            .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
            .where(*planned_in(run))
            .order_by(case_id)
        )
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for row in block:
                yield _compared(row, run)


# --------------------------------------------------------------------------------------------------------- measurements

# What verdicts and comparisons need of Measurements and has a column; the rest is in `extra`.
_MEASURED: Final = (
    *("subject_s", "speedup", "speedup_low", "speedup_high", "compile_cold_s", "graph_breaks", "recompiles"),
)


def measured_rows(store: Store, run: RunInfo, others: Sequence[str] = ()) -> dict[str, Measurements]:
    """What was measured of the passing cases that were timed, and of `others` among the passing ones, by case id.

    Of the costs of a process only their median is kept, which is all that a verdict uses.
    """
    found = _measured_rows(store, run, _IS_TIMED)
    left = [case_id for case_id in others if case_id not in found]
    for first in range(0, len(left), MOST_PARAMETERS):
        found |= _measured_rows(store, run, CASES.c.case_id.in_(left[first : first + MOST_PARAMETERS]))
    return found


def _measured_rows(store: Store, run: RunInfo, condition: sa.ColumnElement[bool]) -> dict[str, Measurements]:
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.extra, *(RECORDS.c[name] for name in _MEASURED))
        .join_from(CASES, RECORDS, SAME_CASE)
        .where(*planned_in(run), RECORDS.c.status == _PASS, condition)
    )
    decode = json.JSONDecoder().raw_decode
    found: dict[str, Measurements] = {}
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for case_id, extra, *numbers in map(tuple, block):
                fields: dict[str, Any] = dict(zip(_MEASURED, numbers, strict=True))
                if extra:
                    fields.update(decode(extra)[0].get("measurements", ()))
                    if costs := fields.get("costs"):
                        fields["costs"] = [p if len(p) <= 1 else (median(p),) for p in costs]
                found[case_id] = Measurements(**fields)
    return found
