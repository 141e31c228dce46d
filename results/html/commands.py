"""The command `torch-oracle report`, as a typer function."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from oracle.errors import UsageError
from results.history import runs_before
from results.html.contents import ROWS_CARRIED, Side, contents_of
from results.html.history import RUNS_SHOWN
from results.html.page import write_report
from results.render import one_line
from results.store import RunInfo, Store, place_of


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="[BASE] HEAD", help="Databases, or DB#RUN for a run other than the latest.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; replaced at once if it exists.")
    ] = Path("report.html"),
    alone: Annotated[bool, typer.Option("--alone", help="With HEAD only: do not look for an earlier run.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Most cases in lists; new failures come first.")] = ROWS_CARRIED,
    history: Annotated[int, typer.Option(min=1, help="Most runs in trends and histories.")] = RUNS_SHOWN,
) -> None:
    """Write a run, and what changed since BASE, as one HTML file that opens without a network.

    With HEAD only, BASE is the run before it in the same database with the same selection, if there is one.
    """
    if len(runs) > 2 or (alone and len(runs) == 2):
        raise UsageError(
            seen=f"{len(runs)} runs{' with --alone' if alone else ''}",
            expected="HEAD, or BASE and HEAD",
            do="torch-oracle report HEAD.db, or torch-oracle report BASE.db HEAD.db",
        )
    with ExitStack() as stack:
        for place in {
            place_of(text)[0] for text in runs
        }:  # open to the end, so that each tells of cells that it cannot hold
            stack.enter_context(Store.open(place, create=False, read_only=True))
        head = Side.read(*place_of(runs[-1]))
        base = None
        if len(runs) == 2:
            base = Side.read(*place_of(runs[0]))
        elif not alone and (earlier := _run_before(head)) is not None:
            base = Side.read(head.place, earlier.run_id)
        contents = contents_of(head, base, limit=rows, history_runs=history)
        size = write_report(contents, output)
    versus = f" compared with {base.run.run_id}" if base else ""
    said = f"{output}: run {head.run.run_id}{versus}, {len(contents.rows)} of {contents.rows_in_all} cases, {size / 1e6:.1f} MB"
    sys.stderr.write(one_line(said) + "\n")


def _run_before(head: Side) -> RunInfo | None:
    with Store.open(head.place, create=False, read_only=True) as store:
        alike = runs_before(store, head.run)
    return alike[-1] if alike else None
