"""What is computed once, when a run is complete, and kept with it in the table of facts, since every comparison needs it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from results.error_sums import keep_sums
from results.schema import ERROR_SUMS, META, PAST, RUNS


def measures_speed(arguments: Mapping[str, Any]) -> bool:
    """Whether a run was asked to measure speed."""
    options = arguments.get("options")
    return isinstance(options, Mapping) and bool(options.get("speed"))


def keep_of_run(connection: sa.Connection, run: int) -> None:
    """Keep the error sums of a complete run, and the moments of what it measured."""
    keep_sums(connection, run)
    arguments = connection.execute(sa.select(RUNS.c.arguments).where(RUNS.c.run == run)).scalar_one()
    if measures_speed(json.loads(arguments)):
        from results.kept_past import keep_past  # noqa: PLC0415  imports numpy and scipy, which few runs need

        keep_past(connection, run)


def keep_missing(connection: sa.Connection) -> int:
    """Keep it of the complete runs that have none: older versions kept nothing. Returns how many runs these were."""
    facts = sa.select(META.c.key).where(META.c.key.startswith(ERROR_SUMS) | META.c.key.startswith(PAST))
    kept = set(connection.execute(facts).scalars())
    done = 0
    for run, arguments in connection.execute(sa.select(RUNS.c.run, RUNS.c.arguments).where(RUNS.c.state == "complete")):
        wanted = [f"{ERROR_SUMS}{run}"] + [f"{PAST}{run}"] * measures_speed(json.loads(arguments))
        if not kept.issuperset(wanted):
            keep_of_run(connection, run)
            done += 1
    return done


def forget_kept(connection: sa.Connection, runs: Iterable[int]) -> None:
    """Remove what is kept of runs that are removed."""
    for run in runs:
        connection.execute(sa.delete(META).where(META.c.key.in_((f"{ERROR_SUMS}{run}", f"{PAST}{run}"))))
