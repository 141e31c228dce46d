"""Commands and stores with input that is empty, broken or used by two at once."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
import typer
from typer.testing import CliRunner

from oracle.errors import InternalError, UsageError
from oracle.records import PlannedCase
from oracle.verdict import Status
from results import commands
from results.baseline import read_baseline
from results.compare import compare_runs
from results.engine import ServerGoneError
from results.html.commands import report
from results.schema import RECORDS
from results.store import Store, StoreTransaction
from results.tests import fabricate

ROOT = Path(__file__).parents[2]
NAMES = ("show", "history", "compare", "triage", "export", "push", "gate", "prune")
CASES = [fabricate.case(f"op/float32/{i}") for i in range(5)]


def run(*words: str | Path, expect: tuple[int, ...] = (0,)) -> str:
    """Standard output of one command line, whose exit code must be one of these. UsageError passes through."""
    app = typer.Typer()
    for name in NAMES:
        app.command(name)(getattr(commands, name))
    app.command("report")(report)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in expect, result.output
    return result.stdout


# ------------------------------------------------------------------------------------------------- a run without rows


@pytest.fixture(scope="module")
def with_empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose first run has rows, and whose second one planned none."""
    path = tmp_path_factory.mktemp("empty") / "runs.db"
    with Store.open(path, create=True) as store:
        fabricate.write_run(store, [fabricate.record(case, Status.FAIL_ACCURACY) for case in CASES], run_id="full")
        fabricate.write_run(store, [], run_id="empty")
    return path


def test_a_run_without_rows_compares_as_one_from_which_all_cases_are_gone(with_empty: Path):
    gone = run("compare", f"{with_empty}#full", f"{with_empty}#empty", expect=(1,))
    assert f"missing row ({len(CASES)})" in gone
    assert gone.count("not planned in head") == len(CASES)
    assert f"new failures: 1 in {len(CASES)} cases" in run(
        "compare", f"{with_empty}#empty", f"{with_empty}#full", expect=(1,)
    )
    both = json.loads(run("compare", f"{with_empty}#empty", f"{with_empty}#empty", "--json"))
    assert (both["cases"], both["timed_in_both"], sum(both["totals"].values())) == ([], 0, 0)


@pytest.mark.parametrize("deleted", ["base", "head"])
@pytest.mark.parametrize("places", ["one file", "two files"])
def test_a_run_that_is_deleted_while_it_is_compared_is_not_one_without_its_cases(
    tmp_path: Path, deleted: str, places: str
):
    paths = {name: tmp_path / ("one.db" if places == "one file" else f"{name}.db") for name in ("base", "head")}
    for name, path in paths.items():
        with Store.open(path, create=True) as store:
            fabricate.write_run(store, [fabricate.record(case, Status.PASS) for case in CASES], run_id=name)
    with Store.open(paths["base"], create=False) as base, Store.open(paths["head"], create=False) as head:
        infos = base.run("base"), head.run("head")
        connection = sqlite3.connect(paths[deleted])
        for table in ("records", "cases", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE run = (SELECT run FROM runs WHERE run_id = ?)", (deleted,))
        connection.commit()
        connection.close()
        with pytest.raises(UsageError, match=f"0 of the 5 planned cases of run {deleted}: others were deleted"):
            compare_runs(base, head, base_run=infos[0], head_run=infos[1])


def test_triage_and_history_take_a_run_without_rows(with_empty: Path):
    words = ("--db", with_empty, "--run", "empty", "--base", f"{with_empty}#full")
    assert f"missing ({len(CASES)})" in run("triage", *words)
    shown = run("history", CASES[0].case_id, "--db", with_empty)
    assert f"{CASES[0].case_id}: 1 run" in shown
    assert "flaky cases (0)" in run("history", "--flaky", "--db", with_empty)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.md", "a.xml"])
def test_a_run_without_rows_is_exported_as_a_file_without_rows(with_empty: Path, tmp_path: Path, name: str):
    run("export", tmp_path / name, "--db", with_empty, "--run", "empty")
    written = (tmp_path / name).read_bytes()
    assert written or name == "a.jsonl"
    assert CASES[0].case_id.encode() not in written


def test_a_page_of_a_run_without_rows_counts_the_cases_that_are_gone(with_empty: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    run("report", f"{with_empty}#full", f"{with_empty}#empty", "--output", page)
    text = page.read_text(encoding="utf-8")
    assert "The run has no cases" in text
    assert f"{len(CASES)} cases without a result" in text


# ------------------------------------------------------------------------------------------------------- broken cells


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two runs that measured speed, some of whose cases fail."""
    path = tmp_path_factory.mktemp("sound") / "runs.db"
    statuses = (Status.PASS, Status.FAIL_ACCURACY, Status.PASS, Status.KNOWN, Status.FAIL_TO_RUN)
    with Store.open(path, create=True) as store:
        for run_id in ("one", "two"):
            records = [
                fabricate.record(case, status, speedup=1.5 if status is Status.PASS else None)
                for case, status in zip(CASES, statuses, strict=True)
            ]
            fabricate.write_run(store, records, run_id=run_id, arguments=TIMED)
    return path


TIMED = {**fabricate.ARGUMENTS, "options": {"speed": True}}
CELLS = [
    *((f"records.{column.name}", "half past nine") for column in RECORDS.columns if isinstance(column.type, sa.Double)),
    *(("records." + name, "many") for name in ("call", "peak_memory", "graph_breaks", "compared_elements")),
    *(("records.symptom", b"bytes"), ("records.extra", "{"), ("records.nan_columns", "nan"), ("records.also", "3")),
    *(("cases.group_name", b"bytes"), ("cases.tags", "nan"), ("programs.program", "{"), ("runs.suites", "opinfo")),
    *(("runs.started_at", b"soon"), ("runs.arguments", b"{}")),
]


def reading_commands(path: Path, folder: Path) -> Iterator[tuple[str | Path, ...]]:
    base, db = f"{path}#one", ("--db", path)
    yield from (("show", *db), ("show", *db, "--speed"), ("show", "*", *db), ("show", *db, "--json"))
    yield from (("show", *db, "--runs"), ("history", CASES[0].case_id, *db), ("history", "--flaky", *db))
    yield from (("compare", base, path), ("triage", *db, "--base", base))
    yield from (("export", folder / f"out.{end}", *db) for end in ("jsonl", "csv", "parquet", "md", "xml"))
    yield ("gate", *db, "--baseline", folder / "accepted.txt", "--base", base, "--slower", "5", "--compile-slower", "9")
    yield from (("push", path, folder / "copy.db"), ("report", base, path, "--output", folder / "page.html"))


@pytest.mark.parametrize(("cell", "value"), CELLS)
def test_a_cell_that_torch_oracle_never_writes_is_named_by_every_command_that_fails_over_it(
    sound: Path, tmp_path: Path, cell: str, value: object
):
    path = tmp_path / "broken.db"
    path.write_bytes(sound.read_bytes())
    (tmp_path / "accepted.txt").write_text("")
    table, column = cell.split(".")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.commit()
    connection.close()
    refused: dict[str, str] = {}
    for words in reading_commands(path, tmp_path):
        try:
            run(*words, expect=(0, 1))
        except UsageError as error:
            refused[str(words[0])] = str(error)
    assert refused
    assert all("expected: " in text and "what to do: " in text for text in refused.values())
    if cell == "records.speedup":
        assert {"show", "report", "compare", "gate"} <= set(refused)
        where, expected = "column speedup of table records at run 1, ordinal 0", "a number: median of eager / subject"
        assert all(where in text and expected in text for text in refused.values()), refused


# ---------------------------------------------------------------------------------------------------------- two writers

WRITER = """
    import sys
    from results.store import Store
    from results.tests import fabricate

    path, run_id, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    cases = [fabricate.case(f"op/float32/{i}") for i in range(count)]
    with Store.open(path, create=False) as store:
        store.begin_planned(run_id=run_id, environment={}, arguments={}, cases=cases)
        sys.stdout.write("begun" + chr(10))
        sys.stdout.flush()
        sys.stdin.readline()
        for case in cases:
            store.append([fabricate.record(case, run_id=run_id)])
        store.end_run(run_id, state="complete")
"""


def test_two_writers_take_turns_row_by_row_while_a_reader_compares(tmp_path: Path):
    path = fabricate.database(tmp_path / "runs.db", [fabricate.record(case) for case in CASES], run_id="before")
    count = 200
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*command, f"run-{i}", str(count)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
        for i in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"  # both have the file open
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while writers[0].poll() is None:
        totals = json.loads(run("compare", f"{path}#before", f"{path}#run-0", "--json", expect=(0, 1)))["totals"]
        assert sum(totals.values()) == count
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    with Store.open(path, create=False, read_only=True) as store:
        assert [(one.recorded, one.is_complete) for one in store.runs()[1:]] == [(count, True)] * 2


def test_the_second_of_two_processes_that_resume_one_run_is_told_and_writes_nothing(tmp_path: Path):
    path = tmp_path / "runs.db"
    with Store.open(path, create=True) as first, Store.open(path, create=False) as second:
        first.begin_planned(run_id="run-1", environment={}, arguments={}, cases=CASES)
        left = [second.unfinished("run-1"), first.unfinished("run-1")]
        first.append([fabricate.record(case) for case in left[1][:2]])
        with pytest.raises(InternalError, match="is another process resuming the run"):
            second.append([fabricate.record(case) for case in left[0][1:]])
        assert second.run("run-1").recorded == 2
        first.append([fabricate.record(case) for case in first.unfinished("run-1")])
        first.end_run("run-1", state="complete")


# -------------------------------------------------------------------------------- a server that goes away during a run


class Server:
    """A database that stops answering, as a server does; here it is a file."""

    def __init__(self, store: Store) -> None:
        self.is_there = True
        self._store = store
        self._transaction = store.transaction

    @contextmanager
    def transaction(self) -> Iterator[StoreTransaction]:
        if not self.is_there:
            raise ServerGoneError(seen="server: connection refused", expected="a server that answers", do="look")
        with self._transaction() as transaction:
            yield transaction


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Server]]:
    (tmp_path / "sweep").mkdir()
    monkeypatch.chdir(tmp_path / "sweep")  # where records are kept
    with Store.open(tmp_path / "server.db", create=True) as store:
        store.begin_planned(run_id="run-1", environment={}, arguments={}, cases=CASES)
        made = Server(store)
        monkeypatch.setattr(store, "transaction", made.transaction)
        yield store, made


def appended(store: Store, cases: list[PlannedCase]) -> None:
    for case in cases:
        store.append([fabricate.record(case)])


def test_a_server_that_comes_back_in_a_run_gets_what_was_kept(
    server: tuple[Store, Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store, there = server
    appended(store, CASES[:1])
    there.is_there = False
    appended(store, CASES[1:4])
    assert store.run("run-1").recorded == 1
    assert capsys.readouterr().err.count("does not answer") == 1
    there.is_there = True
    monkeypatch.setattr("results.store._RETRY_S", 0.0)
    appended(store, CASES[4:])
    assert not list(Path().iterdir())
    store.end_run("run-1", state="complete")
    assert [record.case_id for record in store.records()] == [case.case_id for case in CASES]


def test_records_that_push_delivers_are_written_once_and_their_run_can_end(server: tuple[Store, Server]):
    store, there = server
    there.is_there = False
    appended(store, CASES)
    with pytest.raises(UsageError, match="torch-oracle push"):
        store.end_run("run-1", state="complete")
    (spool,) = Path().iterdir()
    kept = spool.read_bytes()
    there.is_there = True
    for expected in (len(CASES), 0):
        spool.write_bytes(kept)
        assert f"and {expected} records added" in run("push", spool, str(store.location))
        assert not spool.exists()
    store.end_run("run-1", state="complete")


def test_a_line_of_kept_records_that_is_none_is_named_and_nothing_is_delivered(server: tuple[Store, Server]):
    store, there = server
    there.is_there = False
    appended(store, CASES[:3])
    (spool,) = Path().iterdir()
    lines = spool.read_bytes().splitlines(keepends=True)
    spool.write_bytes(lines[0] + b'{"case_id": 3}\n' + lines[2])
    with pytest.raises(UsageError, match="line 2: KeyError"):
        run("push", spool, str(store.location))
    assert spool.exists()
    assert store.run("run-1").recorded == 0


@pytest.mark.parametrize(
    "kept",
    ["{", "[]", "null", '{"run": "run-1", "records": 5, "sums": [[1]]}', '{"run": "run-1", "records": 5}'],
)
def test_damaged_error_sums_are_added_anew(tmp_path: Path, kept: str):
    path = fabricate.database(tmp_path / "x.db", [fabricate.record(case, Status.PASS) for case in CASES])
    shown = run("show", "--db", path)
    connection = sqlite3.connect(path)
    assert connection.execute("UPDATE torch_oracle_meta SET value = ? WHERE key = 'error_sums/1'", (kept,)).rowcount
    connection.commit()
    connection.close()
    assert shown == run("show", "--db", path)


# ------------------------------------------------------------------------------- databases that another program wrote to


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of databases with two runs each, in which something is as no sweep writes it."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, statement in {
        "environment": "UPDATE runs SET environment = '{'",
        "arguments": "UPDATE runs SET arguments = '[1]'",
        "status": "UPDATE records SET status = 'wonderful' WHERE ordinal = 1",
        "extra": "UPDATE records SET extra = '{'",
    }.items():
        path = folder / f"{name}.db"
        with Store.open(path, create=True) as store:
            for run_id in ("one", "two"):
                fabricate.write_run(store, [fabricate.record(case, Status.PASS) for case in CASES], run_id=run_id)
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
    return folder


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("environment", ("show", "--db"), "the environment of run"),
        ("environment", ("prune", "--older-days", "1", "--db"), None),  # the environment is not read
        ("arguments", ("triage", "--db"), "the arguments of run"),
        ("status", ("show", "--db"), "status 'wonderful'"),
        ("status", ("gate", "--baseline", "absent.txt", "--db"), "status 'wonderful'"),
        ("status", ("history", CASES[1].case_id, "--db"), f"the record of {re.escape(CASES[1].case_id)} in run one"),
        ("status", ("history", "--flaky", "--db"), None),  # no other case has anything of it
        ("extra", ("history", CASES[0].case_id, "--db"), "JSONDecodeError"),
        ("extra", ("export", "{folder}/out.jsonl", "--db"), "the record of"),
    ],
)
def test_what_no_sweep_has_written_is_named(foreign: Path, name: str, words: tuple[str, ...], message: str | None):
    given = [word.replace("{folder}", str(foreign)) for word in words]
    if message is None:
        run(*given, foreign / f"{name}.db")
        return
    with pytest.raises(UsageError, match=message):
        run(*given, foreign / f"{name}.db")


@pytest.mark.parametrize(
    "words",
    [("prune", "--older-days", "99999999"), ("triage", "--days", "99999999999"), ("prune", "--older-days", "0")],
)
def test_days_that_no_date_has_are_refused(foreign: Path, words: tuple[str, ...]):
    run(*words, "--db", foreign / "extra.db", expect=(2,))


def test_a_file_and_a_database_that_are_taken_for_each_other_are_told_apart(foreign: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"torch-oracle push .*extra\.db DATABASE"):
        commands.import_(foreign / "extra.db", db=str(tmp_path / "x.db"))
    (tmp_path / "run.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"torch-oracle import .*run\.jsonl --db x\.db"):
        run("push", tmp_path / "run.jsonl", "x.db")


def test_update_accepts_a_case_whose_id_has_a_line_break(tmp_path: Path):
    case = fabricate.case("two\nlines/float32/forward/0")
    db = fabricate.database(tmp_path / "x.db", [fabricate.record(case, Status.FAIL_ACCURACY)])
    words = ("gate", "--db", db, "--baseline", tmp_path / "accepted.txt")
    run(*words, "--update")
    run(*words)
    assert list(read_baseline(tmp_path / "accepted.txt")) == [case.case_id]
