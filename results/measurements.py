"""Reads from the database what passing cases measured: the fields that verdicts on speed, memory and counts need."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from oracle.verdict import Status
from results.schema import CASES, RECORDS
from results.speed.measured import MeasuredCase

_BLOCK: Final = 5000  # rows that are fetched at once
_MOST_PARAMETERS: Final = 500  # case ids in one query: databases limit the number of parameters
# Whether a speedup is a positive number. NaN is NULL in SQLite, and larger than every number in PostgreSQL.
IS_TIMED: Final = sa.and_(RECORDS.c.speedup > 0, RECORDS.c.speedup < sys.float_info.max)
# The measurements that verdicts and comparisons need and that have a column; the rest is in `extra`.
NUMBERS: Final = (
    *("subject_s", "speedup", "speedup_low", "speedup_high", "compile_cold_s", "graph_breaks", "recompiles"),
)
_COLUMNS: Final = tuple(RECORDS.c[name] for name in NUMBERS)
_decode: Final = json.JSONDecoder().raw_decode
_UNMEASURED: Final = MeasuredCase()[len(NUMBERS) :]
_KEY: Final = '"measurements": '  # in `extra`; inside of a text its quotes would be escaped


def measured_case(extra: str, numbers: Sequence[Any]) -> MeasuredCase:
    """The measurements of a case, from its columns and its `extra`."""
    at = extra.find(_KEY) if extra else -1
    if at < 0:
        return MeasuredCase._make((*numbers, *_UNMEASURED))
    read = _decode(extra, at + len(_KEY))[0]  # without the error sums before it
    get = read.get
    costs = [p if len(p) <= 1 else array("d", p) for p in get("costs", ())]
    rest = get("compile_cpu_s", ()), get("peak_memories", ()), get("code")
    return MeasuredCase._make((*numbers, get("kernels"), costs, *rest))


def timed_rows(connection: sa.Connection, run: int) -> dict[str, MeasuredCase]:
    """The measurements of a run's passing cases that were timed, by case id."""
    is_same = sa.and_(RECORDS.c.run == CASES.c.run, RECORDS.c.ordinal == CASES.c.ordinal)
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.extra, *_COLUMNS)
        .join_from(CASES, RECORDS, is_same)
        .where(CASES.c.run == run, RECORDS.c.status == Status.PASS.value, IS_TIMED)
    )
    blocks = connection.execution_options(yield_per=_BLOCK).execute(query).partitions()
    return {row[0]: measured_case(row[1], row[2:]) for block in blocks for row in map(tuple, block)}


def rows_of(connection: sa.Connection, run: int, case_ids: Sequence[str]) -> dict[str, MeasuredCase]:
    """The same of those of these cases that pass.

    Two queries and no join: with a join, SQLite reads all passing records of the run instead of a hundred.
    """
    found: dict[str, MeasuredCase] = {}
    for first in range(0, len(case_ids), _MOST_PARAMETERS):
        some = CASES.c.case_id.in_(case_ids[first : first + _MOST_PARAMETERS])
        places = sa.select(CASES.c.ordinal, CASES.c.case_id).where(CASES.c.run == run, some)
        names = {row[0]: row[1] for row in connection.execute(places)}
        query = sa.select(RECORDS.c.ordinal, RECORDS.c.status, RECORDS.c.extra, *_COLUMNS)
        rows = connection.execute(query.where(RECORDS.c.run == run, RECORDS.c.ordinal.in_(names)))
        for ordinal, status, extra, *numbers in map(tuple, rows):
            if status == Status.PASS.value:
                found[names[ordinal]] = measured_case(extra, numbers)
    return found
