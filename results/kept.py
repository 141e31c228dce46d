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


def forget_kept(connection: sa.Connection, runs: Iterable[int]) -> None:
    """Remove what is kept of runs that are removed."""
    for run in runs:
        connection.execute(sa.delete(META).where(META.c.key.in_((f"{ERROR_SUMS}{run}", f"{PAST}{run}"))))
