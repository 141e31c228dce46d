"""Reads two runs case by case for a comparison: only the cases that differ, and their measurements.

If one connection reaches both runs, since they are in one database or in two SQLite files, the database joins them, so that cases
that just pass in both never leave it. Else both runs are read in the order of their case ids, side by side. Rows are handed on
one after another, so that no run is in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa

from oracle.errors import UsageError
from oracle.verdict import Status
from results.changes import NOT_PLANNED, RowText
from results.engine import attached, reading
from results.measurements import IS_TIMED, NUMBERS, measured_case
from results.queries import BLOCK, RERUNS, planned_in
from results.schema import CASES, RECORDS
from results.speed.measured import MeasuredCase
from results.speed.of_records import LEAST_SECONDS
from results.store import SAME_CASE, RunInfo, Store, absent_verdict

_PASS: Final = Status.PASS.value


class ComparedRow(NamedTuple):
    """The columns of one planned case that a comparison reads."""

    case_id: str
    ordinal: int  # planned order
    status: str
    symptom: str
    is_timed: bool = False
    program_hash: str = ""  # "" where records alone are compared
    measured: MeasuredCase = MeasuredCase()  # of a case that passes: its costs too if it passes in both runs


Pair: TypeAlias = tuple[ComparedRow | None, ComparedRow | None]  # one case in base and in head; None where not planned


class Pairs:
    """The cases of two runs that differ, in no order; they are read while they are iterated over, once."""

    def __init__(self, found: Iterable[Pair | int]) -> None:
        """`found`: pairs that differ, and numbers of cases that do not."""
        self._found = found
        self.alike = 0
        """Number of the other cases, known at the end: they pass in both, with nothing measured that could be compared."""

    def __iter__(self) -> Iterator[Pair]:
        for one in self._found:
            if isinstance(one, int):
                self.alike += one
            else:
                yield one


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
    one, other = old.measured, new.measured
    if (old.is_timed and new.is_timed) or (one.graph_breaks, one.recompiles) != (other.graph_breaks, other.recompiles):
        return True
    cold = one.compile_cold_s, other.compile_cold_s
    return cold[0] is not None and cold[1] is not None and abs(cold[1] - cold[0]) >= LEAST_SECONDS


def pairs_of(base: Iterable[ComparedRow], head: Iterable[ComparedRow]) -> Pairs:
    """The cases of two runs, both in the order of their case ids."""
    return Pairs(1 if is_alike(*pair) else pair for pair in _side_by_side(base, head))


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
    return Pairs(_read_pairs(base, base_run, head, head_run))


def _read_pairs(base: Store, base_run: RunInfo, head: Store, head_run: RunInfo) -> Iterator[Pair | int]:
    if base.location == head.location:
        with head.reading() as connection:
            yield from _joined(connection, base_run, head_run, schema="")
    elif base.location.path is not None and head.location.path is not None:
        with (
            attached(head.location.path, base.location.path, name="base") as engine,
            reading(engine, base.location) as connection,
        ):
            yield from _joined(connection, base_run, head_run, schema="base.")
    else:
        for pair in _side_by_side(compared_rows(base, base_run), compared_rows(head, head_run)):
            yield 1 if is_alike(*pair) else pair


# ---------------------------------------------------------------------------------------------- one case beside the other

_TIMED_SQL: Final = f"CASE WHEN {{0}}.speedup > 0 AND {{0}}.speedup < {sys.float_info.max!r} THEN 1 ELSE 0 END"
_NUMBERS_SQL: Final = ", ".join(f"{{0}}.{name}" for name in NUMBERS)
# Other measurements are only of interest if the case passes in both runs.
_ROW_SQL: Final = f"""{{0}}_case.case_id, {{0}}_case.ordinal, {{0}}.status, {{0}}.symptom, {_TIMED_SQL}, {{0}}_case.program_hash,
    CASE WHEN {{0}}.status = '{_PASS}' AND {{1}}.status = '{_PASS}' THEN {{0}}.extra ELSE '' END, {_NUMBERS_SQL}"""
_RUN_SQL: Final = "(SELECT run FROM {0}runs WHERE run_id = :{1})"
_ALIKE_SQL: Final = f"""
    old.status = '{_PASS}' AND new.status = '{_PASS}' AND old_case.program_hash = new_case.program_hash
    AND {_TIMED_SQL.format("old")} + {_TIMED_SQL.format("new")} < 2
    AND COALESCE(old.graph_breaks, -1) = COALESCE(new.graph_breaks, -1)
    AND COALESCE(old.recompiles, -1) = COALESCE(new.recompiles, -1)
    AND CASE WHEN abs(new.compile_cold_s - old.compile_cold_s) >= {LEAST_SECONDS} THEN 1 ELSE 0 END = 0"""
# CASE, since a comparison with NULL, for a case or a record that is not there, is neither true nor false.
_DIFFERING_SQL: Final = f"""
    SELECT {_ROW_SQL.format("old", "new")}, {_ROW_SQL.format("new", "old")}
    FROM {{0}}cases AS old_case
    LEFT JOIN cases AS new_case ON new_case.run = {_RUN_SQL.format("", "head")} AND new_case.case_id = old_case.case_id
    LEFT JOIN {{0}}records AS old ON old.run = old_case.run AND old.ordinal = old_case.ordinal
    LEFT JOIN records AS new ON new.run = new_case.run AND new.ordinal = new_case.ordinal
    WHERE old_case.run = {_RUN_SQL.format("{0}", "base")} AND CASE WHEN {_ALIKE_SQL} THEN 1 ELSE 0 END = 0
    ORDER BY old_case.ordinal"""
_NEW_SQL: Final = f"""
    SELECT {_ROW_SQL.format("new", "new")}
    FROM cases AS new_case LEFT JOIN records AS new ON new.run = new_case.run AND new.ordinal = new_case.ordinal
    WHERE new_case.run = {_RUN_SQL.format("", "head")}
    AND NOT EXISTS (SELECT 1 FROM {{0}}cases AS old_case
                    WHERE old_case.run = {_RUN_SQL.format("{0}", "base")} AND old_case.case_id = new_case.case_id)
    ORDER BY new_case.ordinal"""
_COUNT_SQL: Final = f"SELECT count(*) FROM {{0}}cases WHERE run = {_RUN_SQL}"


_BEFORE_NUMBERS: Final = 7
_WIDTH: Final = _BEFORE_NUMBERS + len(NUMBERS)


def _joined(connection: sa.Connection, base: RunInfo, head: RunInfo, *, schema: str) -> Iterator[Pair | int]:
    """The cases of two runs that one connection reaches. `schema` is where base's tables are: "" or a name with a point."""
    ids = {"base": base.run_id, "head": head.run_id}
    differing = in_both = 0
    for row in _blocks(connection, _DIFFERING_SQL.format(schema), ids):
        new = None if row[_WIDTH] is None else _compared(row[_WIDTH:], head)
        differing += 1
        in_both += new is not None
        yield _compared(row[:_WIDTH], base), new
    planned = [
        connection.execute(sa.text(_COUNT_SQL.format(where, which)), {which: ids[which]}).scalar_one()
        for where, which in ((schema, "base"), ("", "head"))
    ]
    for run, count in zip((base, head), planned, strict=True):
        _check_is_there(run, count)
    alike = planned[0] - differing
    yield alike
    if alike + in_both < planned[1]:
        for row in _blocks(connection, _NEW_SQL.format(schema), ids):
            yield None, _compared(row, head)


def _check_is_there(run: RunInfo, found: int) -> None:
    """Raise UsageError if cases of the run were deleted during the comparison, which would report them as missing."""
    if found < run.planned:
        raise UsageError(
            seen=f"{found} of the {run.planned} planned cases of run {run.run_id}: others were deleted meanwhile",
            expected="a run that stays while it is compared",
            do="compare again, with a run that `torch-oracle show --runs` lists",
        )


def _blocks(connection: sa.Connection, query: str, parameters: dict[str, str]) -> Iterator[Sequence[Any]]:
    found = connection.execution_options(stream_results=True).execute(sa.text(query), parameters)
    for block in found.partitions(BLOCK):  # a text has no `yield_per`: without a size each row is a block
        yield from map(tuple, block)


def _compared(values: Sequence[Any], run: RunInfo) -> ComparedRow:
    case_id, ordinal, status, symptom, is_timed, program_hash, extra = values[:_BEFORE_NUMBERS]
    if status is None:
        absent = absent_verdict(run.state)
        return ComparedRow(case_id, ordinal, absent.status.value, absent.symptom, False, program_hash)
    measured = measured_case(extra, values[_BEFORE_NUMBERS:])
    return ComparedRow(case_id, ordinal, status, symptom, is_timed == 1, program_hash, measured)


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
                sa.case((IS_TIMED, True), else_=False),
                CASES.c.program_hash,
                sa.case((RECORDS.c.status == _PASS, RECORDS.c.extra), else_=""),
                *(RECORDS.c[name] for name in NUMBERS),
            )
            .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
            .where(*planned_in(run))
            .order_by(case_id)
        )
        found = 0
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for row in block:
                found += 1
                yield _compared(row, run)
        _check_is_there(run, found)


# ---------------------------------------------------------------------------------------------------------------- texts


def read_texts(store: Store, run: RunInfo, ordinals: Sequence[int]) -> dict[int, RowText]:
    """The changes of the cases at these places of a run, by place."""
    wanted = [ordinal for ordinal in ordinals if ordinal != NOT_PLANNED]
    if not wanted:
        return {}
    query = (
        sa.select(CASES.c.ordinal, CASES.c.case_id, RECORDS.c.status, RECORDS.c.symptom, RERUNS)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run), CASES.c.ordinal.in_(wanted))
    )
    absent = absent_verdict(run.state)
    found: dict[int, RowText] = {}
    with store.reading() as connection:
        for ordinal, case_id, status, symptom, extra in connection.execute(query):
            if status is None:
                found[ordinal] = RowText(case_id, absent.status.value, absent.symptom)
            else:
                reruns = json.loads(extra).get("verdict", {}).get("reruns", ()) if extra else ()
                found[ordinal] = RowText(case_id, status, symptom, tuple(reruns))
    return found
