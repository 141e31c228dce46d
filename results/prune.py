"""Removes old runs from a database, and the programs that no other run has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from results.kept import forget_kept
from results.schema import CASES, PROGRAMS, RECORDS, RUNS
from results.store import Store, moment_of

_ENDED = ("complete", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The runs that are removed, the oldest first, and what goes with them."""

    runs: tuple[str, ...]
    cases: int = 0
    programs: int = 0


def prune(store: Store, *, before: datetime, is_trial: bool = False) -> Pruned:
    """Remove the runs that started before that time, and the programs that only they have. A trial removes nothing.

    A run that has not ended stays, and so does one whose start is no date, which imported records may have. The newest run of the
    same suites and subjects stays, too: later runs are compared with it.
    """
    with store.transaction() as transaction:
        connection = transaction.connection
        chosen = _old(connection, before)
        numbers = connection.execute(sa.select(RUNS.c.run).where(RUNS.c.run_id.in_(chosen))).scalars().all()
        cases = connection.execute(sa.select(sa.func.count()).where(CASES.c.run.in_(numbers))).scalar_one()
        if is_trial or not chosen:
            return Pruned(runs=chosen, cases=cases)
        forget_kept(connection, numbers)
        for table in (RECORDS, CASES, RUNS):
            connection.execute(sa.delete(table).where(table.c.run.in_(numbers)))
        is_used = sa.exists().where(CASES.c.program_hash == PROGRAMS.c.program_hash)
        programs = connection.execute(sa.delete(PROGRAMS).where(~is_used)).rowcount
    return Pruned(runs=chosen, cases=cases, programs=programs)


def _old(connection: sa.Connection, before: datetime) -> tuple[str, ...]:
    columns = (RUNS.c.run_id, RUNS.c.state, RUNS.c.started_at, RUNS.c.suites, RUNS.c.subjects)
    runs = connection.execute(sa.select(*columns).order_by(RUNS.c.started_at, RUNS.c.run)).all()
    dated = [(moment, run) for run in runs if (moment := moment_of(run.started_at)) is not None]
    kept = {(tuple(run.suites), tuple(run.subjects)): run.run_id for _, run in dated}.values()
    return tuple(
        run.run_id for moment, run in dated if run.state in _ENDED and moment < before and run.run_id not in kept
    )
