"""Keeps what a run measured as later comparisons need it (`results.speed.past`), and reads it again.

A comparison learns noise from up to eight earlier runs. To read their records takes longer than all else it does: each has the
costs of nine blocks of calls of several processes, as text. So a run's moments are made once, when it ends, and kept in the table
of facts about the database. They hold as long as the run has as many records as they were made of, as with `results.error_sums`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import sqlalchemy as sa

from results.measurements import rows_of, timed_rows
from results.schema import META, PAST, RECORDS, RUNS
from results.speed.past import COLUMNS, DEFINITION, PastRun

_NUMBER: Final = np.dtype("<f8")


def past_run(connection: sa.Connection, run_id: str, case_ids: Iterable[str], *, recorded: int) -> PastRun:
    """What a run with so many records measured: of its timed cases, and of these ones."""
    run = connection.execute(sa.select(RUNS.c.run).where(RUNS.c.run_id == run_id)).scalar()
    if run is None:  # pruned since the comparison began
        return PastRun.of({})
    kept = connection.execute(sa.select(META.c.value).where(META.c.key == f"{PAST}{run}")).scalar()
    found = _read(kept, run_id, recorded) or PastRun.of(timed_rows(connection, run))
    known = set(found.case_ids)
    others = rows_of(connection, run, [case_id for case_id in case_ids if case_id not in known])
    return found.and_of(PastRun.of(others)) if others else found


def keep_past(connection: sa.Connection, run: int) -> None:
    """Make the moments of a run's timed cases, and keep them. For a run that is complete."""
    run_id, recorded = connection.execute(
        sa.select(RUNS.c.run_id, sa.select(sa.func.count()).where(RECORDS.c.run == run).scalar_subquery()).where(
            RUNS.c.run == run
        )
    ).one()
    past = PastRun.of(timed_rows(connection, run))
    numbers = base64.b64encode(zlib.compress(past.numbers.astype(_NUMBER).tobytes(), 1)).decode()
    value = {
        "run": run_id,
        "records": recorded,
        "definition": DEFINITION,
        "columns": COLUMNS,
        "case_ids": past.case_ids,
        "numbers": numbers,
    }
    connection.execute(sa.delete(META).where(META.c.key == f"{PAST}{run}"))
    connection.execute(sa.insert(META), [{"key": f"{PAST}{run}", "value": json.dumps(value)}])


def _read(kept: str | None, run_id: str, recorded: int) -> PastRun | None:
    """Kept moments; None if they are of other records, of another definition, have other columns, or are damaged."""
    try:
        read = json.loads(kept or "{}")
        about = tuple(read.get(name) for name in ("run", "records", "definition", "columns"))
        if about != (run_id, recorded, DEFINITION, list(COLUMNS)):
            return None
        case_ids: Sequence[str] = read["case_ids"]
        numbers = np.frombuffer(zlib.decompress(base64.b64decode(read["numbers"])), dtype=_NUMBER)
        return PastRun(case_ids=case_ids, numbers=numbers.reshape(len(COLUMNS), len(case_ids)))
    except (ValueError, TypeError, LookupError, AttributeError, zlib.error):
        return None
