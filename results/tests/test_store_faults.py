"""The store under faults: killed processes, full and read-only disks, foreign and newer files."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from oracle.errors import UsageError
from results.schema import DATABASE_VERSION
from results.store import Store
from results.tests import fabricate
from results.tests.faults import in_child

ROOT = Path(__file__).parents[2]


def give_up_root() -> None:
    if os.geteuid() == 0:
        os.setuid(65534)


def open_message(path: Path, *, create: bool = True, read_only: bool = False) -> str:
    """What the user is told when the database at `path` is opened; fails if it opens."""
    with pytest.raises(UsageError) as caught:
        Store.open(path, create=create, read_only=read_only)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------------- kill -9

WRITER = """
    import sys
    from results.store import Store
    from results.tests import fabricate

    cases = [fabricate.case(f"op/float32/{i}") for i in range(1000)]
    store = Store.open(sys.argv[1], create=True)
    store.begin_run(run_id="run-1", environment={}, arguments={})
    store.plan("run-1", cases)
    store.finish_planning("run-1")
    for case in cases:
        store.append([fabricate.record(case)])
        print(case.case_id, flush=True)
    print("the end", flush=True)
"""


def test_kill_9_loses_no_record_that_append_returned_from(tmp_path: Path):
    path = tmp_path / "results.db"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(25)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.read().split("\n")[:-1]  # whole lines only
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    with Store.open(path, create=False) as store:
        recorded = [record.case_id for record in store.records()]
        assert len(acknowledged) >= 25
        # One more may have been committed before its line was printed.
        assert acknowledged == recorded[: len(acknowledged)]
        assert len(recorded) <= len(acknowledged) + 1
        assert store.resumable_run() == "run-1"
        left = store.unfinished("run-1")
        assert [case.case_id for case in left] == [case.case_id for case in store.planned()][len(recorded) :]
        store.append([fabricate.record(case) for case in left])
        store.end_run("run-1", state="complete")
        assert store.run().is_complete


STARTER = """
    import sys
    from results.store import Store
    from results.tests import fabricate

    sys.stdin.readline()
    with Store.open(sys.argv[1], create=True) as store:
        fabricate.write_run(store, [fabricate.record(fabricate.case())], run_id=sys.argv[2])
"""


def test_processes_that_start_together_on_one_new_file_each_write_their_run(tmp_path: Path):
    path = tmp_path / "results.db"
    command = [sys.executable, "-c", textwrap.dedent(STARTER), str(path)]
    processes = [
        subprocess.Popen([*command, f"run-{i}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for i in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    with Store.open(path, create=False) as store:
        assert sorted(run.run_id for run in store.runs()) == [f"run-{i}" for i in range(4)]
        assert all(run.is_complete for run in store.runs())


# ---------------------------------------------------------------------------------------------------- full disk


def test_a_full_disk_is_named_and_what_was_there_stays_readable(tmp_path: Path):
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        store.begin_run(run_id="run-1", environment={}, arguments={})
        kept = [fabricate.case(f"kept/float32/{i}") for i in range(3)]
        store.plan("run-1", kept)

    def write_too_much() -> str:
        with Store.open(path, create=True) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            with pytest.raises(UsageError) as caught:
                store.plan("run-1", [fabricate.case(f"op/float32/{i}") for i in range(5000)])
            return str(caught.value)

    message = in_child(write_too_much)
    assert message.startswith(f"{path}: "), message
    assert "what to do: " in message
    assert "free" in message
    with Store.open(path, create=False) as store:
        assert store.planned("run-1") == kept


def test_sqlite_s_own_word_for_a_full_disk_is_understood(tmp_path: Path):
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        store.begin_run(run_id="run-1", environment={}, arguments={})
        raw = store._engine.raw_connection()
        raw.cursor().execute("PRAGMA max_page_count=60")  # holds for this connection, which the pool hands out again
        raw.close()
        with pytest.raises(UsageError, match=r"disk is full(.|\n)*--resume"):
            store.plan("run-1", [fabricate.case(f"op/float32/{i}") for i in range(5000)])
        assert store.planned("run-1") == []


def test_no_file_is_left_behind_when_the_tables_do_not_fit(tmp_path: Path):
    path = tmp_path / "results.db"

    def create_on_a_full_disk() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        return open_message(path)

    assert in_child(create_on_a_full_disk).startswith(f"{path}: ")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- read-only places


@pytest.fixture
def open_directory(tmp_path: Path) -> Path:
    """A directory that every user can enter: pytest's own are private to the user who runs it."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and not directory.stat().st_mode & stat.S_IXOTH:
            directory.chmod(0o755)
    return tmp_path


def test_a_read_only_directory_is_named_when_writing_and_can_still_be_read(open_directory: Path):
    path = fabricate.database(open_directory / "results.db", [fabricate.record(fabricate.case())])
    path.chmod(0o444)
    open_directory.chmod(0o555)

    def write_then_read() -> str:
        give_up_root()
        message = open_message(path)
        with Store.open(path, create=False, read_only=True) as store:
            return f"{message}\nrecords: {len(list(store.records()))}"

    try:
        message = in_child(write_then_read)
    finally:
        open_directory.chmod(0o755)
    assert message.startswith(f"{path}: the file or its directory is read-only"), message
    assert message.endswith("records: 1")


def test_a_new_database_in_a_read_only_directory_is_refused(open_directory: Path):
    open_directory.chmod(0o555)

    def create() -> str:
        give_up_root()
        return open_message(open_directory / "results.db")

    try:
        message = in_child(create)
    finally:
        open_directory.chmod(0o755)
    assert "Permission denied" in message
    assert "what to do: " in message
    assert list(open_directory.iterdir()) == []


def test_a_store_opened_for_reading_writes_nothing(tmp_path: Path):
    path = fabricate.database(tmp_path / "results.db", [fabricate.record(fabricate.case())])
    with Store.open(path, create=False, read_only=True) as store, pytest.raises(UsageError, match="readonly database"):
        store.begin_run(run_id="run-2", environment={}, arguments={})


# ---------------------------------------------------------------------------------------------- files not to be used


def test_a_newer_schema_is_refused_before_a_byte_is_written(tmp_path: Path):
    path = fabricate.database(tmp_path / "results.db", [fabricate.record(fabricate.case())])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE torch_oracle_meta SET value = ?", (str(DATABASE_VERSION + 1),))
    connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        message = open_message(path, read_only=read_only)
        assert f"schema version {DATABASE_VERSION + 1}" in message
        assert "upgrade torch-oracle" in message
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    assert "not a database" in open_message(path)
    assert path.read_text() == "dear diary, " * 100


def test_a_damaged_database_is_refused_with_what_to_do(tmp_path: Path):
    path = fabricate.database(tmp_path / "results.db", [fabricate.record(fabricate.case())])
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996  # the schema's own page
    path.write_bytes(data)
    assert "restore it from a copy" in open_message(path)


def test_somebody_else_s_database_is_refused(tmp_path: Path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE albums (title TEXT)")
    connection.close()
    assert "holds other tables (albums)" in open_message(path)


def test_an_absent_file_is_made_only_by_a_writer_that_may_create_it(tmp_path: Path):
    path = tmp_path / "results.db"
    assert "correct the path, or run a sweep first" in open_message(path, create=False)
    assert "run a sweep first" in open_message(path, read_only=True)
    assert not path.exists()
    assert "mkdir -p" in open_message(tmp_path / "absent" / "results.db")
    assert "is a directory" in open_message(tmp_path)
    path.touch()  # as mktemp leaves it: as good as absent
    assert "holds no results" in open_message(path, read_only=True)
    Store.open(path, create=True).close()


@pytest.mark.parametrize("url", ["mysql://host/db", "postgresql://", "://", "postgresql://u:secret@h:notaport/db"])
def test_a_url_that_cannot_be_used_is_refused_without_showing_its_password(url: str):
    with pytest.raises(UsageError) as caught:
        Store.open(url, create=False)
    assert "secret" not in str(caught.value)


def test_a_path_with_url_characters_is_a_path(tmp_path: Path):
    path = fabricate.database(tmp_path / "a?b#c %20.db", [fabricate.record(fabricate.case())])
    assert path.exists()
    with Store.open(f"sqlite:///{tmp_path}/plain.db", create=True) as store:
        assert store.location.path == tmp_path / "plain.db"
