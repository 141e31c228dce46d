"""The command `torch-oracle serve`: a results database in the browser, by Datasette, read-only and for this machine alone.

Datasette shows the tables and the view `results` with what their columns mean, and answers SQL; the page /report is the HTML
report of the latest run. Only requests to this machine's own names are answered, so that no web site can read the database
through the reader's browser.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oracle.errors import UsageError
from oracle.verdict import Status
from results.engine import Location
from results.files import DB_VARIABLE
from results.schema import CASE_COLUMNS, FLAT_COLUMNS, RECORD_COLUMNS
from results.store import Store

_HOST: Final = "127.0.0.1"
_NAMES: Final = frozenset({_HOST, "localhost"})
_SQL_NAMES: Final = {"group": "group_name"}  # as in results.schema

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_LATEST: Final = "run_id = (SELECT run_id FROM runs ORDER BY run DESC LIMIT 1)"
_FAILS: Final = "status IN ({})".format(", ".join(f"'{status.value}'" for status in Status if status.is_finding))
QUERIES: Final[Mapping[str, tuple[str, str]]] = {
    "failures": (
        "Failures of the latest run, with the command that runs each again",
        f"SELECT case_id, status, symptom, repro FROM results WHERE {_LATEST} AND {_FAILS} ORDER BY suite, name",
    ),
    "failures_by_operator": (
        "Failures of the latest run, counted by operator, status and subject",
        "SELECT group_name, status, subject, COUNT(*) AS cases, MIN(symptom) AS an_example "
        f"FROM results WHERE {_LATEST} AND {_FAILS} GROUP BY group_name, status, subject ORDER BY cases DESC",
    ),
    "pass_rates": (
        "The latest run by suite and subject",
        "SELECT suite, subject, COUNT(*) AS cases, SUM(status IN ('pass', 'xpass')) AS passed, SUM(status = 'known') AS known, "
        f"SUM({_FAILS}) AS failing FROM results WHERE {_LATEST} GROUP BY suite, subject ORDER BY suite, subject",
    ),
    "history": (
        "How one case ended in every run",
        "SELECT runs.started_at, results.run_id, status, symptom, speedup, compile_cold_s FROM results "
        "JOIN runs ON runs.run_id = results.run_id WHERE case_id = :case_id ORDER BY runs.run",
    ),
    "trend": (
        "Every run: how many cases pass, are known and fail",
        "SELECT runs.started_at, runs.run_id, runs.state, COUNT(*) AS cases, SUM(status IN ('pass', 'xpass')) AS passed, "
        f"SUM(status = 'known') AS known, SUM({_FAILS}) AS failing "
        "FROM results JOIN runs ON runs.run_id = results.run_id GROUP BY runs.run ORDER BY runs.run",
    ),
    "slowest": (
        "Passing cases of the latest run that are slower than eager, the slowest first",
        "SELECT case_id, speedup, speedup_low, speedup_high, eager_s, subject_s, compile_cold_s FROM results "
        f"WHERE {_LATEST} AND status = 'pass' AND speedup_high < 1 ORDER BY speedup",
    ),
}


def serve(
    db: Annotated[str, typer.Argument(help="Results: a SQLite file.", envvar=DB_VARIABLE, show_envvar=True)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 for any free one.")] = 8001,
) -> None:
    """Show a results database in the browser: tables, SQL, ready queries and the report of its latest run. Read-only."""
    try:
        import uvicorn  # noqa: PLC0415  of the extra `serve`
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    app = make_app(db)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            raise UsageError(
                seen=f"port {port} of {_HOST}: {error.strerror}",
                expected="a free port",
                do="name one with --port, or 0",
            ) from error
        listener.listen()  # from here on a browser waits instead of being refused
        print(
            f"http://{_HOST}:{listener.getsockname()[1]}/  (the report of the latest run: /report; Ctrl-C ends it)",
            flush=True,
        )
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[listener])


def make_app(db: str) -> _App:
    """The web application for a database. Raises UsageError for a database that is not there, or not in SQLite."""
    location = Location.parse(db)
    if location.path is None:
        raise UsageError(
            seen=f"{location}, which is not a SQLite file",
            expected="a SQLite file: Datasette reads no other databases",
            do="copy its runs with `torch-oracle push DATABASE copy.db` and serve the copy",
        )
    with Store.open(location.path, create=False, read_only=True):
        pass  # refuses a database of another program
    try:
        from datasette.app import Datasette  # noqa: PLC0415  of the extra `serve`
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    datasette = Datasette(
        [str(location.path)],
        metadata=metadata(location.path.stem),
        settings={"allow_download": False, "num_sql_threads": 2, "sql_time_limit_ms": 10_000, "allow_csv_stream": True},
    )
    return _guarded(datasette.app(), location.path)


def _not_installed(error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        seen=f"{error.name} is not installed",
        expected="the extra `serve`, which brings Datasette",
        do="pip install 'torch-oracle[serve]'",
    )


def metadata(name: str) -> dict[str, Any]:
    """Titles, what each column means, and the ready queries, in Datasette's format. `name` is that of the database."""
    meanings = {_SQL_NAMES.get(column.name, column.name): column.meaning for column in FLAT_COLUMNS}
    of_cases = {_SQL_NAMES.get(column.name, column.name): column.meaning for column in CASE_COLUMNS}
    of_records = {column.name: column.meaning for column in RECORD_COLUMNS}
    return {
        "title": "torch-oracle",
        "description_html": '<p><a href="/report">The report of the latest run</a></p>',
        "databases": {
            name: {
                "description_html": '<p><a href="/report">The report of the latest run</a></p>',
                "tables": {
                    "results": {
                        "title": "results",
                        "description": "One row for each planned case of each run: what was planned, and how it ended",
                        "columns": meanings,
                    },
                    "runs": {
                        "description": "One row for each run, in the order of their start",
                        "label_column": "run_id",
                    },
                    "cases": {"description": "Planned cases", "columns": of_cases, "label_column": "case_id"},
                    "records": {"description": "How the cases ended; `results` shows both", "columns": of_records},
                    "programs": {"description": "Programs as JSON, each stored once"},
                    "torch_oracle_meta": {"hidden": True},
                },
                "queries": {
                    key: {"title": title, "sql": sql, "hide_sql": True} for key, (title, sql) in QUERIES.items()
                },
            }
        },
    }


def _guarded(inner: _App, path: Path) -> _App:
    """The application behind a check of the host's name, with the page /report in front of it."""
    reports = _Reports(path)

    async def app(scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if host.rpartition(":")[0] not in _NAMES and host not in _NAMES:
                await _answer(send, 403, "text/plain", f"This server answers to {_HOST} and localhost only.\n".encode())
                return
            if scope["path"] == "/report":
                await _report(reports, send)
                return
        await inner(scope, receive, send)

    return app


async def _report(reports: _Reports, send: _Send) -> None:
    import asyncio  # noqa: PLC0415  only while a server runs

    try:
        content = await asyncio.to_thread(reports.latest)
    except UsageError as error:
        await _answer(
            send, 404, "text/html", f"<!doctype html><title>No report</title><pre>{escape(str(error))}</pre>".encode()
        )
        return
    await _answer(send, 200, "text/html; charset=utf-8", content)


async def _answer(send: _Send, status: int, kind: str, content: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class _Reports:
    """The report of the latest run, written again when that has more records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: tuple[str, int] | None = None
        self._content = b""

    def latest(self) -> bytes:
        from results.html.commands import report  # noqa: PLC0415  jinja2 and pandas take a second; the tables do not need them

        with Store.open(self._path, create=False, read_only=True) as store:
            run = store.run()
        if (key := (run.run_id, run.recorded)) != self._key:
            with tempfile.TemporaryDirectory() as folder:
                output = Path(folder) / "report.html"
                report([str(self._path)], output)
                self._content, self._key = output.read_bytes(), key
        return self._content
