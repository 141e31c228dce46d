"""Store: runs, planned cases and records in one database, SQLite or PostgreSQL.

A sweep writes to it (`oracle.records.RecordSink`); tables, comparisons, gates and exports read from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from oracle.errors import InternalError, UsageError
from oracle.records import PlannedCase, Record
from oracle.verdict import Status, Verdict
from results.damage import find_damage
from results.engine import Location, ServerGoneError, open_engine, reading, writing
from results.kept import keep_of_run
from results.schema import (
    CASE_COLUMNS,
    CASE_SQL_NAMES,
    CASES,
    PROGRAMS,
    RECORD_COLUMNS,
    RECORD_SQL_NAMES,
    RECORDS,
    RUNS,
    case_values,
    record_values,
    run_facts,
    safe_text,
    unflatten,
)
from results.spool import Spool

LATEST: Final = "latest"
_RETRY_S: Final = 30.0  # time between attempts to reach a server that went away
_PARAMETERS: Final = 500  # of one statement; SQLite limits their number

# Errors of code that has read a number where there is text, and the like. A UsageError is none of them.
_OF_BAD_DATA: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, SQLAlchemyError)

# States of a run. A killed run stays "planning" or "running"; both "running" and "interrupted" can be resumed.
PLANNING: Final = "planning"
RUNNING: Final = "running"
COMPLETE: Final = "complete"
INTERRUPTED: Final = "interrupted"


def place_of(text: str) -> tuple[str, str]:
    """Database and run of "DB" or "DB#RUN"; the run is LATEST where none is named. A file with a # in its name is a database."""
    if "#" not in text or Path(text).exists():
        return text, LATEST
    db, _, run_id = text.rpartition("#")
    return db, run_id or LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One run: its arguments, its environment, and its progress."""

    run_id: str
    state: str  # "planning" | "running" | "complete" | "interrupted"
    started_at: str  # ISO 8601, UTC
    ended_at: str | None
    environment: Mapping[str, Any]
    arguments: Mapping[str, Any]
    planned: int  # number of planned cases
    recorded: int  # number of those with a record
    subjects: tuple[str, ...] = ()  # of the planned cases

    @property
    def is_complete(self) -> bool:
        return self.state == COMPLETE and self.planned == self.recorded

    @property
    def is_resumable(self) -> bool:
        """Whether all its cases are planned, and it did not end by itself."""
        return self.state in (RUNNING, INTERRUPTED)


def moment_of(text: str) -> datetime | None:
    """The time that a run says it began; None for other text, which imported records may have. In UTC where it names no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


class Store:
    """A results database. Use as a context manager, or call `close`.

    Every writing method is one transaction: when it returns, the rows survive `kill -9` of the process; if it raises, nothing was
    written. Database errors become UsageError with the path, what was seen and what to do.
    """

    def __init__(self, engine: sa.Engine, location: Location) -> None:
        self._engine = engine
        self.location = location
        self._spool: Spool | None = None  # while a server does not answer
        self._gone_since = 0.0

    @classmethod
    def open(cls, url_or_path: str | os.PathLike[str], *, create: bool, read_only: bool = False) -> Store:
        """Open a SQLite file (a path) or a PostgreSQL URL. `create` makes the tables if there are none.

        Raises UsageError for a database that is absent, of another program or a newer schema, or cannot be opened.
        """
        location = Location.parse(url_or_path)
        return cls(open_engine(location, create=create, read_only=read_only), location)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, _OF_BAD_DATA):
                self._check_cells(error)
        finally:
            self.close()

    def _check_cells(self, cause: BaseException) -> None:
        """Raise UsageError if the database holds what no version of torch-oracle writes: then that is the cause of an error."""
        with reading(self._engine, self.location) as connection:
            found = _bad_cell(connection, self.location)
        if found is not None:
            raise found from cause

    @contextmanager
    def transaction(self) -> Iterator[StoreTransaction]:
        """Several writes in one transaction."""
        with writing(self._engine, self.location) as connection:
            yield StoreTransaction(connection)

    # ------------------------------------------------------------------------------------------- writing (RecordSink)

    def begin_run(self, *, run_id: str, environment: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Add a run, in state "planning". Raises InternalError if the id exists."""
        with self.transaction() as transaction:
            transaction.begin_run(run_id=run_id, environment=environment, arguments=arguments, command=command_line())

    def plan(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add planned cases. Raises InternalError for a case id planned twice, and after `finish_planning`."""
        cases = list(cases)  # outside of the transaction, since the caller's generator may be slow
        with self.transaction() as transaction:
            transaction.plan(run_id, cases)

    def finish_planning(self, run_id: str) -> None:
        """Mark the plan as complete. A resumed run may call it again."""
        with self.transaction() as transaction:
            transaction.set_state(run_id, RUNNING)

    def begin_planned(
        self, *, run_id: str, environment: Mapping[str, Any], arguments: Mapping[str, Any], cases: Iterable[PlannedCase]
    ) -> None:
        """Add a run with all its planned cases, in state "running", in one transaction."""
        cases = list(cases)
        with self.transaction() as transaction:
            transaction.begin_run(run_id=run_id, environment=environment, arguments=arguments, command=command_line())
            transaction.plan(run_id, cases)
            transaction.set_state(run_id, RUNNING)

    def plan_further(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add cases that follow from a running run's records to its plan, in one transaction.

        Raises InternalError for a case id planned twice, and for a run that is complete or still being planned.
        """
        cases = list(cases)
        with self.transaction() as transaction:
            transaction.plan_further(run_id, cases)

    def append(self, records: Iterable[Record]) -> None:
        """Write records. Raises InternalError for a case that was not planned, and for a second record of a case.

        If a server goes away, they are kept in a file (`results.spool`) and written when it answers again.
        """
        records = list(records)
        if not records:
            return
        if self._spool is not None and not self._is_back():
            self._spool.add(records, location=self.location)
            return
        try:
            with self.transaction() as transaction:
                transaction.append(records)
        except ServerGoneError:
            self._spool = self._spool or Spool.of_run(records[0].run_id)
            self._gone_since = time.monotonic()
            self._spool.add(records, location=self.location)

    def deliver(self, records: Sequence[Record]) -> int:
        """Write those of the records that are not there yet. Returns how many. Raises UsageError for an unknown run or case."""
        count = 0
        for run_id, of_run in _by_run(records).items():
            left = {case.case_id for case in self.unfinished(run_id)}
            missing = [record for record in of_run if safe_text(record.case_id) in left]
            if missing:
                with self.transaction() as transaction:
                    transaction.append(missing)
            count += len(missing)
        return count

    def end_run(self, run_id: str, *, state: str) -> None:
        """`state` is "complete" (every planned case has its record, else InternalError) or "interrupted".

        Raises UsageError if records of the run are still in a file, since their server does not answer.
        """
        if self._spool is not None and not self._is_back(at_once=True):
            raise UsageError(
                seen=f"{self.location} does not answer; records of run {run_id} are in {self._spool.path.absolute()}",
                expected="a server that takes them",
                do=f"torch-oracle push {self._spool.path} {self.location} when it is back, then sweep --resume",
            )
        with self.transaction() as transaction:
            transaction.end_run(run_id, state=state)

    def _is_back(self, *, at_once: bool = False) -> bool:
        """Whether the server answers again; then it has the records of the spool. Asked every half minute."""
        assert self._spool is not None
        if not at_once and time.monotonic() - self._gone_since < _RETRY_S:
            return False
        try:
            # The file is gone if another process has delivered it with `push` meanwhile.
            self.deliver(self._spool.records() if self._spool.path.exists() else ())
        except ServerGoneError:
            self._gone_since = time.monotonic()
            return False
        self._spool.remove()
        self._spool = None
        return True

    # -------------------------------------------------------------------------------------------------------- reading

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for queries of other modules, in one reading transaction."""
        with reading(self._engine, self.location) as connection:
            yield connection

    def runs(self) -> list[RunInfo]:
        """All runs, in the order of their start."""
        with reading(self._engine, self.location) as connection:
            return _run_infos(connection)

    def run(self, run_id: str = LATEST) -> RunInfo:
        """A run by id, or the latest. Raises UsageError if there is none, and for one with a status that this version has not."""
        with reading(self._engine, self.location) as connection:
            found = _run_infos(connection, run_id)
            if found:
                _check_statuses(connection, found[-1].run_id, self.location)
                return found[-1]
        runs = self.runs()
        known = ", ".join(run.run_id for run in runs[-5:]) or "none"
        raise UsageError(
            seen=f"run {run_id!r} is not in {self.location}",
            expected=f"'latest' or the id of a run; the last ones are: {known}",
            do="run a sweep with this --db first" if not runs else "name one of these with --run",
        )

    def resumable_run(self) -> str | None:
        """Id of the newest run that is resumable; None if there is none."""
        return next((run.run_id for run in reversed(self.runs()) if run.is_resumable), None)

    def environment(self, run_id: str = LATEST) -> Mapping[str, Any]:
        return self.run(run_id).environment

    def arguments(self, run_id: str = LATEST) -> Mapping[str, Any]:
        return self.run(run_id).arguments

    def planned(self, run_id: str = LATEST) -> list[PlannedCase]:
        """All planned cases, in planned order, with their programs."""
        return self._cases(run_id, only_unfinished=False)

    def unfinished(self, run_id: str = LATEST) -> list[PlannedCase]:
        """Planned cases without a record, in planned order, with their programs."""
        return self._cases(run_id, only_unfinished=True)

    def records(
        self,
        run_id: str = LATEST,
        *,
        with_missing: bool = False,
        where: sa.ColumnElement[bool] | None = None,
    ) -> Generator[Record]:
        """Records in planned order. `with_missing` adds one for each planned case that has none.

        Its status is `missing` in a complete run, and `not_run` in any other. `where` is a condition on CASES and RECORDS.
        """
        run = self.run(run_id)
        query = (
            sa.select(*CASE_SELECTION, *RECORD_SELECTION)
            .join_from(CASES, RECORDS, SAME_CASE, isouter=with_missing)
            .join(RUNS, RUNS.c.run == CASES.c.run)
            .where(RUNS.c.run_id == run.run_id, sa.true() if where is None else where)
            .order_by(CASES.c.ordinal)
        )
        with reading(self._engine, self.location) as connection:
            for row in connection.execution_options(yield_per=2000).execute(query).mappings():
                yield to_record(row, run_id=run.run_id, state=run.state)

    def records_at(self, run: RunInfo, ordinals: Sequence[int]) -> list[Record]:
        """The records of the planned cases at these places, in planned order, with one for each case that has none."""
        query = (
            sa.select(*CASE_SELECTION, *RECORD_SELECTION)
            .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
            .join(RUNS, RUNS.c.run == CASES.c.run)
            .where(RUNS.c.run_id == run.run_id, CASES.c.ordinal.in_(ordinals))
            .order_by(CASES.c.ordinal)
        )
        with reading(self._engine, self.location) as connection:
            rows = connection.execute(query).mappings()
            return [to_record(row, run_id=run.run_id, state=run.state) for row in rows]

    def program(self, case_id: str, run_id: str = LATEST) -> Mapping[str, Any]:
        """`Program.to_json()` of one planned case. Raises UsageError for a case that was not planned."""
        run = self.run(run_id)
        query = (
            sa.select(PROGRAMS.c.program)
            .join_from(CASES, PROGRAMS, CASES.c.program_hash == PROGRAMS.c.program_hash)
            .join(RUNS, RUNS.c.run == CASES.c.run)
            .where(RUNS.c.run_id == run.run_id, CASES.c.case_id == case_id)
        )
        with reading(self._engine, self.location) as connection:
            text = connection.execute(query).scalar()
        if text is None:
            raise UsageError(
                seen=f"case {case_id!r} is not planned in run {run.run_id}",
                expected="a case id of that run",
                do=f"torch-oracle show '*' --db {self.location} lists them",
            )
        return json.loads(text)

    def _cases(self, run_id: str, *, only_unfinished: bool) -> list[PlannedCase]:
        run = self.run(run_id)
        query = (
            sa.select(*CASE_SELECTION, CASES.c.program_hash, PROGRAMS.c.program)
            .join_from(CASES, PROGRAMS, CASES.c.program_hash == PROGRAMS.c.program_hash)
            .join(RUNS, RUNS.c.run == CASES.c.run)
            .where(RUNS.c.run_id == run.run_id)
            .order_by(CASES.c.ordinal)
        )
        if only_unfinished:
            query = query.join(RECORDS, SAME_CASE, isouter=True).where(RECORDS.c.status.is_(None))
        programs: dict[str, Mapping[str, Any]] = {}  # the subjects of a program share one object
        cases = []
        with reading(self._engine, self.location) as connection:
            for row in connection.execution_options(yield_per=2000).execute(query).mappings():
                if row["program_hash"] not in programs:
                    programs[row["program_hash"]] = json.loads(row["program"])
                labels = {column.field: row[column.name] for column in CASE_COLUMNS}
                cases.append(PlannedCase(**labels, program=programs[row["program_hash"]]))
        return cases


class StoreTransaction:
    """The writes of a Store in one transaction; `merge` combines several of them."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> sa.Connection:
        return self._connection

    def begin_run(
        self,
        *,
        run_id: str,
        environment: Mapping[str, Any],
        arguments: Mapping[str, Any],
        started_at: str | None = None,
        command: str = "",
    ) -> None:
        row = {
            "run_id": run_id,
            "state": PLANNING,
            "started_at": started_at or _now(),
            "environment": json.dumps(environment),
            "arguments": json.dumps(arguments),
            "command": command,
            **run_facts(environment),
        }
        try:
            self._connection.execute(sa.insert(RUNS), [row])
        except IntegrityError as error:
            raise InternalError(f"run {run_id} is begun a second time") from error

    def update_run(self, run_id: str, *, environment: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        values = {"environment": json.dumps(environment), "arguments": json.dumps(arguments)}
        values |= run_facts(environment)
        self._connection.execute(sa.update(RUNS).where(RUNS.c.run == self._run(run_id)).values(values))

    def plan(self, run_id: str, cases: Sequence[PlannedCase]) -> None:
        if self._state(run_id) != PLANNING:
            raise InternalError(f"{len(cases)} cases planned in run {run_id}, whose planned set is already complete")
        self.add_cases(run_id, cases)

    def plan_further(self, run_id: str, cases: Sequence[PlannedCase]) -> None:
        if (state := self._state(run_id)) not in (RUNNING, INTERRUPTED):
            raise InternalError(f"{len(cases)} further cases planned in run {run_id}, which is {state}")
        self.add_cases(run_id, cases)

    def add_cases(self, run_id: str, cases: Sequence[PlannedCase]) -> None:
        """Like `plan`, in any state of the run."""
        if not cases:
            return
        run = self._run(run_id)
        first = self._connection.execute(
            sa.select(sa.func.coalesce(sa.func.max(CASES.c.ordinal) + 1, 0)).where(CASES.c.run == run)
        ).scalar_one()
        programs: dict[str, str] = {}
        rows = []
        for ordinal, case in enumerate(cases, first):
            text = json.dumps(case.program, separators=(",", ":"))  # ASCII; key order kept, as it may matter (kwargs)
            program_hash = hashlib.sha256(text.encode()).hexdigest()
            programs[program_hash] = text
            rows.append(case_values(case, run=run, ordinal=ordinal, program_hash=program_hash))
        self.add_programs(programs)
        self._note_labels(run, cases)
        try:
            self.insert(CASES, CASE_SQL_NAMES, rows)
        except IntegrityError as error:
            raise InternalError(f"run {run_id}: {_twice(cases)} is planned twice ({error.orig})") from error

    def add_programs(self, programs: Mapping[str, str]) -> None:
        """Add programs (JSON) by their hash, unless they are there."""
        rows = [{"program_hash": program_hash, "program": text} for program_hash, text in programs.items()]
        self._connection.execute(self._insert_unless_present(PROGRAMS), rows)

    def append(self, records: Sequence[Record]) -> None:
        rows = []
        for run_id, of_run in _by_run(records).items():
            run = self._run(run_id)
            ordinals = self._ordinals(run, [record.case_id for record in of_run])
            for record in of_run:
                ordinal = ordinals.get(safe_text(record.case_id))
                if ordinal is None:
                    raise InternalError(f"a record of {record.case_id}, which is not planned in run {run_id}")
                rows.append(record_values(record, run=run, ordinal=ordinal))
        try:
            self.insert(RECORDS, RECORD_SQL_NAMES, rows)
        except IntegrityError as error:
            raise InternalError(
                f"a second record of one case among {_twice(records)} ({error.orig}); is another process resuming the run?"
            ) from error

    def end_run(self, run_id: str, *, state: str) -> None:
        if state not in (COMPLETE, INTERRUPTED):
            raise InternalError(f"end_run with state {state!r}, but should be {COMPLETE!r} or {INTERRUPTED!r}")
        if state == COMPLETE:
            run = next(iter(_run_infos(self._connection, run_id)), None)
            if run is not None and run.planned != run.recorded:
                left = f"{run.planned - run.recorded} of {run.planned} planned cases have no record"
                raise InternalError(f"run {run_id} ends as complete, but {left}")
        # A run that ends during planning keeps its state, since it cannot be resumed from an incomplete plan.
        is_planning = self._state(run_id) == PLANNING
        self.set_state(run_id, PLANNING if is_planning else state, ended_at=_now())
        if state == COMPLETE and not is_planning:
            keep_of_run(self._connection, self._run(run_id))

    def _state(self, run_id: str) -> str:
        return self._connection.execute(sa.select(RUNS.c.state).where(RUNS.c.run == self._run(run_id))).scalar_one()

    def set_state(self, run_id: str, state: str, *, ended_at: str | None = None) -> None:
        self._connection.execute(
            sa.update(RUNS).where(RUNS.c.run == self._run(run_id)).values(state=state, ended_at=ended_at)
        )

    def _run(self, run_id: str) -> int:
        run = self._connection.execute(sa.select(RUNS.c.run).where(RUNS.c.run_id == run_id)).scalar()
        if run is None:
            raise InternalError(f"run {run_id} was never begun")
        return run

    def _ordinals(self, run: int, case_ids: Sequence[str]) -> dict[str, int]:
        query = sa.select(CASES.c.case_id, CASES.c.ordinal).where(CASES.c.run == run)
        found: dict[str, int] = {}
        for start in range(0, len(case_ids), _PARAMETERS):
            some = query.where(CASES.c.case_id.in_(case_ids[start : start + _PARAMETERS]))
            found.update(tuple(row) for row in self._connection.execute(some))
        return found

    def insert(self, table: sa.Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows of values that the driver takes as they are: SQLAlchemy's conversions would take most of the time."""
        mark = "%s" if self._connection.dialect.name == "postgresql" else "?"
        marks = ", ".join([mark] * len(names))
        self._connection.exec_driver_sql(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", list(rows))

    def _note_labels(self, run: int, cases: Sequence[PlannedCase]) -> None:
        """Add the suites and subjects of planned cases to those of the run."""
        known = self._connection.execute(sa.select(RUNS.c.suites, RUNS.c.subjects).where(RUNS.c.run == run)).one()
        suites = tuple(dict.fromkeys((*known.suites, *(case.suite for case in cases))))
        subjects = tuple(dict.fromkeys((*known.subjects, *(case.subject for case in cases))))
        if (suites, subjects) != (known.suites, known.subjects):
            values = {"suites": suites, "subjects": subjects}
            self._connection.execute(sa.update(RUNS).where(RUNS.c.run == run).values(values))

    def _insert_unless_present(self, table: sa.Table) -> sa.Insert:
        if self._connection.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql  # noqa: PLC0415  slow to import, and few databases are on a server

            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()


SAME_CASE: Final = sa.and_(RECORDS.c.run == CASES.c.run, RECORDS.c.ordinal == CASES.c.ordinal)
# Labelled with the names of FLAT_COLUMNS, since some SQL columns have other names.
CASE_SELECTION: Final = tuple(CASES.c[column.name].label(column.name) for column in CASE_COLUMNS)
RECORD_SELECTION: Final = (
    *(RECORDS.c[column.name] for column in RECORD_COLUMNS),
    RECORDS.c.extra,
    RECORDS.c.nan_columns,
)


def _run_infos(connection: sa.Connection, run_id: str | None = None) -> list[RunInfo]:
    """All runs, or the one with this id, or the latest."""

    def count(table: sa.Table) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.count()).select_from(table).where(table.c.run == RUNS.c.run).scalar_subquery()

    query = sa.select(RUNS, count(CASES).label("planned"), count(RECORDS).label("recorded")).order_by(RUNS.c.run)
    if run_id == LATEST:
        query = query.where(RUNS.c.run == sa.select(sa.func.max(RUNS.c.run)).scalar_subquery())
    elif run_id is not None:
        query = query.where(RUNS.c.run_id == run_id)
    return [
        RunInfo(
            run_id=row.run_id,
            state=row.state,
            started_at=row.started_at,
            ended_at=row.ended_at,
            environment=_json_object(row.run_id, "environment", row.environment),
            arguments=_json_object(row.run_id, "arguments", row.arguments),
            planned=row.planned,
            recorded=row.recorded,
            subjects=row.subjects,
        )
        for row in connection.execute(query)
    ]


def _json_object(run_id: str, what: str, text: str) -> Mapping[str, Any]:
    """The environment or the arguments of a run. Raises UsageError for a text that is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(
            seen=f"the {what} of run {run_id} in the database: {text[:40]!r}",
            expected="a JSON object, as a sweep writes it",
            do="restore the database from a copy",
        )
    return found


_STATUSES: Final = tuple(status.value for status in Status)


def _bad_cell(connection: sa.Connection, location: Location) -> UsageError | None:
    """What to tell of the first cell that no version of torch-oracle has written."""
    if (found := find_damage(connection)) is None:
        return None
    do = "restore the database from a copy, or correct this cell"
    return UsageError(seen=f"{location}: {found[0]}", expected=found[1], do=do)


def _check_statuses(connection: sa.Connection, run_id: str, location: Location) -> None:
    """Raise UsageError if a record of the run has a status that this version does not know, or a speed that is no number."""
    run = sa.select(RUNS.c.run).where(RUNS.c.run_id == run_id).scalar_subquery()
    query = sa.select(RECORDS.c.status).where(RECORDS.c.run == run, RECORDS.c.status.not_in(_STATUSES)).limit(1)
    if (status := connection.execute(query).scalar()) is not None:
        raise UsageError(
            seen=f"run {run_id}, which has a record with status {status!r}",
            expected="a status that this version of torch-oracle knows",
            do="upgrade torch-oracle to the version that wrote it, or restore the database from a copy",
        )
    if connection.dialect.name != "sqlite":
        return
    # Text would pass for "not timed", and a budget would hold. The index has this column, so that no record is read.
    is_text = sa.func.typeof(RECORDS.c.speedup).in_(("text", "blob"))
    if connection.execute(
        sa.select(sa.literal(1)).select_from(RECORDS).where(RECORDS.c.run == run, is_text).limit(1)
    ).first():
        raise _bad_cell(connection, location) or InternalError("a speed that is no number, which no cell holds")


def to_record(row: sa.RowMapping, *, run_id: str, state: str) -> Record:
    """The record of a row with CASE_SELECTION and RECORD_SELECTION, whose record may be absent.

    Raises UsageError for a row that no version of torch-oracle has written.
    """
    if row["status"] is not None:
        nans = dict.fromkeys(row["nan_columns"], float("nan"))
        try:
            return unflatten(dict(row) | nans, run_id=run_id)
        except (ValueError, TypeError, LookupError) as error:
            raise UsageError(
                seen=f"the record of {row['case_id']} in run {run_id}: {type(error).__name__}: {error}",
                expected="a record as a sweep writes it",
                do="restore the database from a copy, or read it with the version of torch-oracle that wrote it",
            ) from error
    case = PlannedCase(**{column.field: row[column.name] for column in CASE_COLUMNS})
    return Record.of(case, run_id=run_id, verdict=absent_verdict(state))


def absent_verdict(state: str) -> Verdict:
    """The verdict on a planned case that has no record: `missing` in a complete run, `not_run` in another one."""
    if state == COMPLETE:
        return Verdict(status=Status.MISSING, symptom="planned, but has no record although the run is complete")
    return Verdict(status=Status.NOT_RUN, symptom=f"planned, not run yet: the run is {state}")


def _by_run(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.run_id, []).append(record)
    return groups


def _twice(items: Sequence[PlannedCase] | Sequence[Record]) -> str:
    """The first case id that occurs twice in a refused batch, or a shortened list of all."""
    seen: set[str] = set()
    for item in items:
        if item.case_id in seen:
            return item.case_id
        seen.add(item.case_id)
    ids = [item.case_id for item in items]
    return ids[0] if len(ids) == 1 else f"{ids[0]} ... {ids[-1]}"


def command_line() -> str:
    """The command line of this process, if it is `torch-oracle`; else ""."""
    return shlex.join(["torch-oracle", *sys.argv[1:]]) if Path(sys.argv[0]).name == "torch-oracle" else ""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
