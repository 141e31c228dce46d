"""Copy whole runs from one database to another, with all their cases, programs and records.

A run is known by its id. Copying again changes nothing; a run that is there in part, such as one that was resumed since, is
completed. Records of one case that differ are an error, and nothing of that run is written then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from oracle.errors import UsageError
from results.kept import keep_of_run
from results.schema import CASE_SQL_NAMES, CASES, FACTS, PROGRAMS, RECORD_SQL_NAMES, RECORDS, RUNS
from results.store import COMPLETE, PLANNING, Store, StoreTransaction

_BLOCK: Final = 5000
_RUN_NAMES: Final = (
    *("run_id", "state", "started_at", "ended_at", "environment", "arguments"),
    *FACTS,
    *("suites", "subjects"),
)
_CASE_ID: Final = CASE_SQL_NAMES.index("case_id")
_Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The numbers of rows added to the target."""

    runs: int = 0  # new ones
    runs_completed: int = 0  # that were there in part
    cases: int = 0
    records: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            runs=self.runs + other.runs,
            runs_completed=self.runs_completed + other.runs_completed,
            cases=self.cases + other.cases,
            records=self.records + other.records,
        )


def copy_runs(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Copied:
    """Copy all runs of `source` to `target`, which is made if absent, each in one transaction.

    Raises UsageError if a run of both has records of one case that differ.
    """
    with Store.open(source, create=False, read_only=True) as old, Store.open(target, create=True) as new:
        if str(old.location) == str(new.location):
            raise UsageError(seen=f"{target} as source and target", expected="two databases", do="name another target")
        copied = Copied()
        for info in old.runs():
            with old.reading() as read, new.transaction() as write:
                copied += _copy_run(read, write, info.run_id, f"{old.location} and {new.location}")
        return copied


def _copy_run(source: sa.Connection, write: StoreTransaction, run_id: str, where: str) -> Copied:
    columns = [RUNS.c[name] for name in _RUN_NAMES]
    row = source.execute(sa.select(RUNS.c.run, *columns).where(RUNS.c.run_id == run_id)).one()
    values = dict(zip(_RUN_NAMES, row[1:], strict=True))
    target = write.connection
    present = target.execute(sa.select(RUNS.c.run, RUNS.c.state).where(RUNS.c.run_id == run_id)).one_or_none()
    if present is None:
        (number,) = target.execute(sa.insert(RUNS).values(values)).inserted_primary_key or (0,)
        ordinals, known = {}, {}
    else:
        number = present.run
        in_run = sa.select(CASES.c.case_id, CASES.c.ordinal).where(CASES.c.run == number)
        ordinals = {found.case_id: found.ordinal for found in target.execute(in_run)}
        known = {record[1]: _comparable(record) for record in _rows(target, RECORDS, RECORD_SQL_NAMES, number)}
    cases, places = _copy_cases(source, write, row.run, number, ordinals)
    records = 0
    new: list[_Row] = []
    for record in _rows(source, RECORDS, RECORD_SQL_NAMES, row.run):
        ordinal = places[record[1]] if places is not None else record[1]
        if ordinal not in known:
            new.append((number, ordinal, *record[2:]))
        elif known[ordinal] != _comparable(record):
            case_id = next(name for name, place in ordinals.items() if place == ordinal)
            raise UsageError(
                seen=f"{case_id} of run {run_id} has different records in {where}",
                expected="one record of each case of a run; nothing of this run was copied",
                do="keep the two apart, or delete one of the runs",
            )
        if len(new) == _BLOCK:
            write.insert(RECORDS, RECORD_SQL_NAMES, new)
            records += len(new)
            new = []
    if new:
        write.insert(RECORDS, RECORD_SQL_NAMES, new)
        records += len(new)
    if values["state"] == COMPLETE and (present is None or records):
        keep_of_run(target, number)
    if present is None:
        return Copied(runs=1, cases=cases, records=records)
    if records or cases or present.state == PLANNING:
        target.execute(sa.update(RUNS).where(RUNS.c.run == number).values(values))
    return Copied(runs_completed=int(bool(cases or records)), cases=cases, records=records)


def _copy_cases(
    source: sa.Connection, write: StoreTransaction, old: int, number: int, ordinals: dict[str, int]
) -> tuple[int, dict[int, int] | None]:
    """Copy cases and their programs. Returns how many, and where the source's ordinals are now; None if they are the same."""
    places: dict[int, int] = {}
    is_new_run = not ordinals
    following = max(ordinals.values(), default=-1) + 1
    count = 0
    for block in _blocks(_rows(source, CASES, CASE_SQL_NAMES, old)):
        new: list[_Row] = []
        for row in block:
            place = row[1] if is_new_run else ordinals.get(row[_CASE_ID])
            if place is None or is_new_run:
                place = row[1] if is_new_run else following
                following += 1
                new.append((number, place, *row[2:]))
            if not is_new_run:
                places[row[1]] = place
        if new:
            _copy_programs(source, write, sorted({row[-1] for row in new}))
            write.insert(CASES, CASE_SQL_NAMES, new)
            count += len(new)
    return count, None if is_new_run else places


def _copy_programs(source: sa.Connection, write: StoreTransaction, hashes: Sequence[str]) -> None:
    for start in range(0, len(hashes), 500):
        wanted = PROGRAMS.c.program_hash.in_(hashes[start : start + 500])
        write.add_programs({row.program_hash: row.program for row in source.execute(sa.select(PROGRAMS).where(wanted))})


def _rows(connection: sa.Connection, table: sa.Table, names: Sequence[str], run: int) -> Iterator[_Row]:
    """The rows of a run as the driver gives them, in planned order."""
    query = sa.text(f"SELECT {', '.join(names)} FROM {table.name} WHERE run = :run ORDER BY ordinal")
    found = connection.execute(query, {"run": run}, execution_options={"yield_per": _BLOCK})
    for row in found:
        yield tuple(row)


def _blocks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    block: list[_Row] = []
    for row in rows:
        block.append(row)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


def _comparable(record: _Row) -> int:
    """A hash of what a record says. SQLite stores NaN as NULL."""
    return hash(tuple(None if value != value else value for value in record[2:]))
