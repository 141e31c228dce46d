"""Data frames of a run's cases, counted and filtered by the database: what `torch-oracle show` prints.

Apart from `results.queries`, since pandas takes longer to import than most commands take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import sqlalchemy as sa

from oracle.verdict import Status
from results.queries import NARROW, Cases, count_statuses, notable_columns, planned_in, read_columns
from results.schema import FLAT_COLUMNS, RECORDS
from results.store import RunInfo, Store
from results.tables import DTYPES

# Columns of speed.
TIMED: Final = (
    *("suite", "subject", "status", "speedup", "speedup_low", "speedup_high", "compile_cold_s", "compile_warm_s"),
    *("peak_memory", "eager_peak_memory", "graph_breaks", "recompiles"),
)
TIMED_BY_CASE: Final = ("case_id", "eager_s", "subject_s", *TIMED)
_KINDS: Final = {column.name: column.kind for column in FLAT_COLUMNS}


def status_counts(store: Store, run: RunInfo, glob: Cases = "*") -> pd.DataFrame:
    """One row per suite, subject and status that occurs, with the number of `cases`, as `results.tables.status_counts`."""
    return pd.DataFrame(count_statuses(store, run, glob), columns=["suite", "subject", "status", "cases"])


def notable_rows(store: Store, run: RunInfo, glob: Cases = "*", *, columns: Sequence[str] = NARROW) -> pd.DataFrame:
    """`results.queries.notable_columns` as a frame."""
    return _frame(notable_columns(store, run, glob, columns=columns))


def passing_rows(store: Store, run: RunInfo, glob: Cases = "*", *, columns: Sequence[str] = TIMED) -> pd.DataFrame:
    """The passing cases that have a speed or a compile time, or broke the graph or were compiled again, in planned order."""
    is_measured = sa.or_(
        RECORDS.c.speedup.is_not(None),
        RECORDS.c.compile_cold_s.is_not(None),
        RECORDS.c.graph_breaks > 0,
        RECORDS.c.recompiles > 0,
    )
    conditions = (*planned_in(run, glob), RECORDS.c.status == Status.PASS.value, is_measured)
    return _frame(read_columns(store, run, columns, *conditions))


def _frame(columns: Mapping[str, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=DTYPES[_KINDS[name]] if name in _KINDS else "bool")
            for name, values in columns.items()
        }
    )
