"""Removes old runs from a database, and the programs that no other run has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from results.schema import CASES, PROGRAMS, RECORDS, RUNS
from results.store import Store

_ENDED = ("complete", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The runs that are removed, the oldest first, and what goes with them."""

    runs: tuple[str, ...]
    cases: int = 0
    programs: int = 0


def prune(store: Store, *, before: datetime, is_trial: bool = False) -> Pruned:
    """Remove the runs that started before that time, and the programs that only they have. A trial removes nothing.

    A run that has not ended stays, and so does the newest run of the same suites and subjects: later runs are compared with it.
    """
    with store.transaction() as transaction:
        connection = transaction.connection
        chosen = _old(connection, before)
        numbers = sa.select(RUNS.c.run).where(RUNS.c.run_id.in_(chosen))
        cases = connection.execute(sa.select(sa.func.count()).where(CASES.c.run.in_(numbers))).scalar_one()
        if is_trial or not chosen:
            return Pruned(runs=chosen, cases=cases)
        for table in (RECORDS, CASES, RUNS):
            connection.execute(sa.delete(table).where(table.c.run.in_(numbers)))
        is_used = sa.exists().where(CASES.c.program_hash == PROGRAMS.c.program_hash)
        programs = connection.execute(sa.delete(PROGRAMS).where(~is_used)).rowcount
    return Pruned(runs=chosen, cases=cases, programs=programs)


def _old(connection: sa.Connection, before: datetime) -> tuple[str, ...]:
    columns = (RUNS.c.run_id, RUNS.c.state, RUNS.c.started_at, RUNS.c.suites, RUNS.c.subjects)
    runs = connection.execute(sa.select(*columns).order_by(RUNS.c.started_at, RUNS.c.run)).all()
    newest = {(tuple(run.suites), tuple(run.subjects)): run.run_id for run in runs}
    return tuple(
        run.run_id
        for run in runs
        if run.state in _ENDED and datetime.fromisoformat(run.started_at) < before and run.run_id not in newest.values()
    )
