"""Open a results database, SQLite by path or PostgreSQL by URL, and translate its errors for the user.

A database of another program, or with a newer schema, is refused before anything is written to it. One with an older schema is
migrated when it is opened for writing; a reader is told to migrate it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from oracle.errors import UsageError
from results.schema import DATABASE_VERSION, HEAD_REVISION, META, METADATA, REVISION, VIEWS

BUSY_TIMEOUT_S: Final = 30.0  # time that a writer waits for another writer of the same file
# SQLite's cache of pages. A writer's holds the indices of a large database, which the default, 2 MB, does not. A reader reads
# each row once, and sorts in as much memory again.
_WRITER_CACHE_KIB: Final = 32 * 1024
_READER_CACHE_KIB: Final = 8 * 1024
_CHECKPOINT_PAGES: Final = 8000  # 32 MB of log
_SCHEMA_LOCK: Final = 0x0AC1E  # PostgreSQL advisory lock, so that shards that start together create the tables once


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Location of a database. Exactly one of `path` (SQLite) and `url` (PostgreSQL) is set."""

    path: Path | None = None
    url: sa.URL | None = None

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Location:
        """A bare path or sqlite:///PATH is SQLite, postgresql://... is PostgreSQL. Raises UsageError for others."""
        text = os.fspath(text)
        if "://" not in text:
            if not text:
                raise UsageError(seen="an empty --db", expected="a file or a URL", do="name the results database")
            return cls(path=Path(text))
        try:
            url = sa.make_url(text)
        except (ArgumentError, ValueError) as error:
            raise UsageError(
                seen=f"--db {text.split('://', 1)[0]}://..., which is not a URL ({error.__class__.__name__})",
                expected="postgresql://USER:PASSWORD@HOST/DATABASE",
                do="correct the URL; characters such as @ and / in a password must be percent-encoded",
            ) from error
        backend = url.get_backend_name()
        if backend == "sqlite" and url.database:
            return cls(path=Path(url.database))
        if backend in ("postgresql", "postgres"):
            # The extra installs psycopg 3, but SQLAlchemy 2.0 would use psycopg2 by default.
            return cls(url=url.set(drivername="postgresql+psycopg"))
        raise UsageError(
            seen=f"--db {url.render_as_string(hide_password=True)}",
            expected="a file (SQLite), sqlite:///FILE or postgresql://...",
            do="use one of these",
        )

    def __str__(self) -> str:
        return str(self.path) if self.url is None else self.url.render_as_string(hide_password=True)


def open_engine(location: Location, *, create: bool, read_only: bool) -> sa.Engine:
    """An engine for a database with our current schema. `create` makes the database if it does not exist.

    Raises UsageError if it does not exist, is no database of ours, has a newer schema, or is not accessible.
    """
    with translated_errors(location):
        if location.path is not None:
            return _open_sqlite(location, location.path, create=create, read_only=read_only)
        return _open_postgres(location, create=create, read_only=read_only)


@contextmanager
def writing(engine: sa.Engine, location: Location) -> Iterator[sa.Connection]:
    """One writing transaction: all of it is written or nothing. Database errors become UsageError."""
    with (
        translated_errors(location),
        engine.connect().execution_options(is_write=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def reading(engine: sa.Engine, location: Location) -> Iterator[sa.Connection]:
    """One reading transaction, with a consistent view even while a sweep is writing."""
    with translated_errors(location), engine.connect() as connection, connection.begin():
        yield connection


# ------------------------------------------------------------------------------------------------------------ SQLite


def _open_sqlite(location: Location, path: Path, *, create: bool, read_only: bool) -> sa.Engine:
    if path.is_dir():
        raise UsageError(
            seen=f"{path} is a directory", expected="a file", do=f"name a file, such as {path / 'results.db'}"
        )
    exists = path.exists()
    if not exists and (read_only or not create):
        raise UsageError(
            seen=f"{path} does not exist",
            expected="a results database written by `torch-oracle sweep`",
            do="correct the path, or run a sweep first",
        )
    if not exists and not path.parent.is_dir():
        raise UsageError(
            seen=f"the directory {path.parent} does not exist",
            expected=f"a directory to put {path.name} in",
            do=f"mkdir -p {path.parent}",
        )
    version = 0
    if exists and path.stat().st_size > 0:
        # Inspected read-only first, since even setting the journal mode changes the file.
        inspector = _sqlite_engine(path, read_only=True)
        try:
            version = _check_schema(inspector, location, read_only=read_only)
        finally:
            inspector.dispose()
    has_schema = version > 0
    if read_only or (has_schema and not _is_writable(path)):
        if not read_only:
            raise _read_only(location)
        if not has_schema:
            raise _no_schema(location)
        return _sqlite_engine(path, read_only=True)
    if not has_schema and not create:
        raise _no_schema(location)
    is_made_here = not exists and _make_file(path)
    engine = _sqlite_engine(path, read_only=False)
    try:
        # With WAL, `show` can read while a sweep writes. SQLite sets the mode only outside of a transaction.
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
        finally:
            raw.close()
        _bring_up_to_date(engine, location, version)
    except BaseException:
        engine.dispose()
        if is_made_here:
            _remove_database(path)  # leaves no incomplete database
        raise
    return engine


@contextmanager
def attached(path: Path, other: Path, *, name: str) -> Iterator[sa.Engine]:
    """An engine that reads one SQLite file of ours, and the tables of another one under a name, as "name.runs"."""
    engine = _sqlite_engine(path, read_only=True)

    def attach(connection: Any, _: object) -> None:
        connection.execute(f"ATTACH DATABASE ? AS {name}", (_sqlite_uri(other, read_only=True),))

    event.listen(engine, "connect", attach)
    try:
        yield engine
    finally:
        engine.dispose()


def _sqlite_uri(path: Path, *, read_only: bool) -> str:
    mode = "rwc" if not read_only else "rw" if _is_writable(path) else "ro"
    wal = path.with_name(path.name + "-wal")
    # Reading a WAL database needs a shared-memory file beside it. With write permission, the database is opened for writing in
    # query_only mode, so that SQLite removes that file at the end. Without it, and if no writer has left a log, the database
    # file alone is complete, and "immutable" reads it without the shared-memory file.
    is_immutable = mode == "ro" and not wal.exists()
    return f"file:{quote(str(path.absolute()))}?mode={mode}{'&immutable=1' if is_immutable else ''}"


def _sqlite_engine(path: Path, *, read_only: bool) -> sa.Engine:
    uri = _sqlite_uri(path, read_only=read_only)

    def connect() -> sqlite3.Connection:
        # isolation_level None: only the listener below begins transactions.
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys=ON")
        # NORMAL, not FULL: a commit is in the kernel's page cache when it returns, so kill -9 of this process loses nothing. A
        # power loss can drop the last commits but not corrupt the file, and a sweep is resumable. FULL costs an fsync per append.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB if read_only else _WRITER_CACHE_KIB}")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
        else:
            # Fewer and larger moves of the log into the file, each of which waits for the disk.
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.QueuePool)

    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE: otherwise a transaction that reads before it writes fails if another one has written meanwhile.
        is_write = connection.get_execution_options().get("is_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    event.listen(engine, "begin", begin)
    return engine


def _is_writable(path: Path) -> bool:
    # The directory must be writable too, since the log is beside the file.
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _make_file(path: Path) -> bool:
    """Make an empty file. Returns False if another process was first, which then owns the file."""
    try:
        path.open("xb").close()
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            seen=f"{path}: {error.strerror}",
            expected="a directory that can be written",
            do="check its permissions, or name another file with --db",
        ) from error
    return True


def _remove_database(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


# -------------------------------------------------------------------------------------------------------- PostgreSQL


def _open_postgres(location: Location, *, create: bool, read_only: bool) -> sa.Engine:
    assert location.url is not None
    try:
        engine = sa.create_engine(location.url, connect_args={"connect_timeout": 10})
    except ModuleNotFoundError as error:
        raise UsageError(
            seen=f"--db {location}, but {error.name} is not installed",
            expected="psycopg 3",
            do="pip install 'torch-oracle[postgres]'",
        ) from error
    try:
        version = _check_schema(engine, location, read_only=read_only)
        if not version and (read_only or not create):
            raise _no_schema(location)
        if not read_only:
            _bring_up_to_date(engine, location, version)
    except BaseException:
        engine.dispose()
        raise
    return engine.execution_options(postgresql_readonly=True) if read_only else engine


# ------------------------------------------------------------------------------------------------------------ schema


def _check_schema(engine: sa.Engine, location: Location, *, read_only: bool) -> int:
    """The version of our schema, 0 if there are no tables.

    Raises UsageError for other tables, for a newer version, and for an older one if the database is to be read only.
    """
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        if META.name not in tables:
            if "runs" in tables or ("sqlite" in engine.dialect.name and tables):
                raise UsageError(
                    seen=f"{location} holds other tables ({', '.join(sorted(tables)[:5])}) and no {META.name}",
                    expected="a database of torch-oracle, or an empty one",
                    do="name another database with --db",
                )
            return 0
        value = _version(connection)
    if value is None or not value.isdecimal():
        raise UsageError(
            seen=f"{location} with schema version {value!r}", expected="a number", do="restore the file from a copy"
        )
    if int(value) > DATABASE_VERSION:
        raise UsageError(
            seen=f"{location} has schema version {value}",
            expected=f"at most {DATABASE_VERSION}; nothing was written",
            do="upgrade torch-oracle to the version that wrote it, or name another database with --db",
        )
    if int(value) < DATABASE_VERSION and read_only:
        raise UsageError(
            seen=f"{location} has the older schema version {value}",
            expected=f"version {DATABASE_VERSION}",
            do=f"torch-oracle migrate {location} brings it up to date; older versions of torch-oracle cannot read it then",
        )
    return int(value)


def _bring_up_to_date(engine: sa.Engine, location: Location, version: int) -> None:
    """Create the schema, or migrate an older one, in one transaction."""
    if version == DATABASE_VERSION:
        return
    with engine.connect().execution_options(is_write=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        # Asked again, since another process may have been first.
        if META.name not in sa.inspect(connection).get_table_names():
            METADATA.create_all(connection, checkfirst=False)
            connection.execute(sa.insert(META), [{"key": "schema_version", "value": str(DATABASE_VERSION)}])
            connection.execute(sa.insert(REVISION), [{"version_num": HEAD_REVISION}])
            _make_views(connection)
            return
        before = _version(connection)
        if int(before or 0) == DATABASE_VERSION:
            return
        from results import migrations  # noqa: PLC0415  alembic is slow to import, and only a migration needs it

        for name in VIEWS:
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        migrations.upgrade(connection)
        connection.execute(sa.update(META).where(META.c.key == "schema_version").values(value=str(DATABASE_VERSION)))
        _make_views(connection)
    sys.stderr.write(f"{location}: migrated from schema version {before} to {DATABASE_VERSION}\n")


def _make_views(connection: sa.Connection) -> None:
    for name, (_, query) in VIEWS.items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")


def _version(connection: sa.Connection) -> str | None:
    return connection.execute(sa.select(META.c.value).where(META.c.key == "schema_version")).scalar()


# ------------------------------------------------------------------------------------------------------------ errors


@contextmanager
def translated_errors(location: Location) -> Iterator[None]:
    """Turn database errors that the user can fix into UsageError; others are our bugs and propagate."""
    try:
        yield
    except sqlite3.Error as error:  # raised by the raw connection that sets the journal mode
        translated = _translate(location, str(error))
        if translated is None:
            raise
        raise translated from error
    except DatabaseError as error:
        if location.url is not None and _is_gone(error):
            raise ServerGoneError(
                seen=f"{location}: {' '.join(str(error.orig).split())}",
                expected="a server that answers",
                do="check that it runs and can be reached",
            ) from error
        translated = _translate(location, str(error.orig))
        if translated is None and isinstance(error, OperationalError):
            if location.path is not None and "no such " in str(error.orig):  # a table or a column
                do = "restore it from a copy, or name another file with --db"
                translated = _usage(location, error.orig, "the tables that docs/schema.md describes", do)
            else:
                translated = _usage(location, error.orig, "a database that answers", "check that it can be reached")
        if translated is None:
            raise
        raise translated from error


class ServerGoneError(UsageError):
    """A server does not answer, or ended the connection."""


def _is_gone(error: DatabaseError) -> bool:
    # 57P01 to 57P05: the server shuts down or ended the connection; 08: connection errors; no state: it was never reached.
    state = getattr(error.orig, "sqlstate", None)
    is_of_connection = state is None or state.startswith(("57P", "08"))
    return isinstance(error, OperationalError) and (error.connection_invalidated or is_of_connection)


# A part of a driver's message (lower case), what was expected, and what to do.
_ERROR_RULES: Final = (
    (
        ("disk is full", "no space left", "disk full"),
        "room for the results",
        "free some space there, then use --resume",
    ),
    (
        ("disk i/o error",),
        "a file system that takes writes",
        "check free space, quotas and file size limits (ulimit -f) there, then use --resume",
    ),
    (
        ("file is not a database", "disk image is malformed", "file is encrypted"),
        "a SQLite database written by torch-oracle",
        "restore it from a copy, or name another file with --db",
    ),
    (
        ("readonly database", "read-only transaction"),
        "a database that can be written",
        "make it writable, or name another with --db",
    ),
    (
        ("unable to open database file",),
        "a file that can be opened",
        "check the permissions of the file and its directory",
    ),
    (("database is locked",), "at most one long write at a time", "wait for the other process, or end it"),
    (("permission denied",), "rights to create and write tables", "ask for these rights on the database"),
)


def _translate(location: Location, message: str) -> UsageError | None:
    lowered = message.lower()
    for needles, expected, do in _ERROR_RULES:
        if any(needle in lowered for needle in needles):
            return _usage(location, message, expected, do)
    return None


def _usage(location: Location, message: Any, expected: str, do: str) -> UsageError:
    return UsageError(seen=f"{location}: {' '.join(str(message).split())}", expected=expected, do=do)


def _read_only(location: Location) -> UsageError:
    return _usage(
        location,
        "the file or its directory is read-only",
        "a database that can be written, in a directory that can be written",
        "make both writable, or name another file with --db",
    )


def _no_schema(location: Location) -> UsageError:
    return _usage(
        location, "holds no results", "a database written by `torch-oracle sweep`", "run a sweep with this --db first"
    )
