"""The store on PostgreSQL: the same promises as on SQLite. Needs a server, whose URL a variable names.

TORCH_ORACLE_TEST_POSTGRES_URL=postgresql://USER@HOST/DATABASE, a database that the tests may empty.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from oracle.errors import InternalError, UsageError
from oracle.verdict import Status
from results.compare import compare_runs
from results.engine import Location
from results.history import case_history, run_summaries
from results.merge import merge
from results.schema import DATABASE_VERSION, VIEWS
from results.spool import Spool
from results.store import Store
from results.tests import fabricate, test_migrations, test_queries, test_transfer
from results.transfer import Copied, copy_runs

VARIABLE = "TORCH_ORACLE_TEST_POSTGRES_URL"
URL = os.environ.get(VARIABLE, "")

pytestmark = pytest.mark.skipif(not URL, reason=f"needs a PostgreSQL server named by {VARIABLE}")


def execute(statement: str) -> None:
    url = Location.parse(URL).url
    assert url is not None
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def drop_all() -> None:
    for view in VIEWS:
        execute(f"DROP VIEW IF EXISTS {view}")
    execute("DROP TABLE IF EXISTS records, cases, programs, runs, torch_oracle_meta, alembic_version")


@pytest.fixture
def store() -> Iterator[Store]:
    drop_all()
    with Store.open(URL, create=True) as opened:
        yield opened


def test_records_of_every_status_come_back_as_they_were(store: Store):
    records = fabricate.record_of_every_status()
    fabricate.write_run(store, records)
    assert records == list(store.records())
    assert fabricate.cases_of(records) == store.planned()


def test_nan_infinity_nul_and_a_64_bit_seed_survive(store: Store):
    record = fabricate.record(fabricate.case(), Status.FAIL_ACCURACY)
    worst = replace(fabricate.WORST, subject_error=math.nan, allowed_error=math.inf)
    verdict = replace(record.verdict, worst=worst)
    fabricate.write_run(store, [replace(record, verdict=verdict, seed=2**64 - 1, traceback="a\0b\udc80")])
    (read,) = store.records()
    assert read.verdict.worst is not None
    assert math.isnan(read.verdict.worst.subject_error or 0.0)
    assert (read.verdict.worst.allowed_error, read.seed, read.traceback) == (math.inf, 2**64 - 1, "a\\x00b\\udc80")


def test_resume_refusals_and_missing_rows_are_as_on_sqlite(store: Store):
    cases = [fabricate.case(f"op/float32/{i}") for i in range(4)]
    store.begin_run(run_id="run-1", environment={}, arguments={})
    with pytest.raises(InternalError, match="planned twice"):
        store.plan("run-1", [cases[0], cases[0]])
    store.plan("run-1", cases)
    store.finish_planning("run-1")
    store.append([fabricate.record(cases[2])])
    with pytest.raises(InternalError, match="second record"):
        store.append([fabricate.record(cases[1]), fabricate.record(cases[2])])
    assert store.unfinished("run-1") == [cases[i] for i in (0, 1, 3)]
    assert store.resumable_run() == "run-1"
    statuses = [record.verdict.status for record in store.records(with_missing=True)]
    assert statuses == [Status.NOT_RUN, Status.NOT_RUN, Status.PASS, Status.NOT_RUN]


def test_a_reader_cannot_write_and_a_newer_schema_is_refused(store: Store):
    with Store.open(URL, create=False, read_only=True) as reader, pytest.raises(UsageError, match="read-only"):
        reader.begin_run(run_id="run-1", environment={}, arguments={})
    execute(f"UPDATE torch_oracle_meta SET value = '{DATABASE_VERSION + 1}'")
    with pytest.raises(UsageError, match="upgrade torch-oracle"):
        Store.open(URL, create=True)


def test_a_server_that_does_not_answer_is_named_without_the_password():
    with pytest.raises(UsageError) as caught:
        Store.open("postgresql://someone:secret@127.0.0.1:1/absent", create=True)
    assert "secret" not in str(caught.value)
    assert "what to do" in str(caught.value)


def test_shards_merge_from_sqlite_into_postgres(store: Store, tmp_path):
    path = fabricate.database(tmp_path / "a.db", [fabricate.record(fabricate.case())])
    assert merge(URL, [path]).records_added == 1
    assert merge(URL, [path]).records_added == 0
    assert store.run().is_complete


def test_an_older_database_is_migrated(store: Store, capsys: pytest.CaptureFixture[str]):
    store.close()
    drop_all()
    for statement in test_migrations.OLD.read_text(encoding="utf-8").replace("DOUBLE", "DOUBLE PRECISION").split(";\n"):
        if statement.strip() not in ("", "BEGIN TRANSACTION", "COMMIT"):
            execute(statement.replace("%", "%%"))
    with pytest.raises(UsageError, match="torch-oracle migrate postgresql"):
        Store.open(URL, create=False, read_only=True)
    with Store.open(URL, create=False) as migrated:
        assert list(migrated.records()) == test_migrations.EXPECTED
    assert "migrated from schema version 1" in capsys.readouterr().err
    execute("SELECT * FROM v_latest, v_runs, v_case_history")


def test_records_are_kept_while_the_server_is_away_and_delivered_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    url = Location.parse(URL).url
    assert url is not None
    there = url.set(database="torch_oracle_there")

    def administer(*statements: str) -> None:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()

    # A database that has another name is one that cannot be reached.
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'torch_oracle_%%'"
    go = (ended, "ALTER DATABASE torch_oracle_there RENAME TO torch_oracle_away")
    come_back = (ended, "ALTER DATABASE torch_oracle_away RENAME TO torch_oracle_there")
    drop = ("DROP DATABASE IF EXISTS torch_oracle_there", "DROP DATABASE IF EXISTS torch_oracle_away")
    administer(*drop, "CREATE DATABASE torch_oracle_there")
    cases = [fabricate.case(f"op/float32/{i}") for i in range(5)]
    records = [fabricate.record(case) for case in cases]
    with Store.open(there.render_as_string(hide_password=False), create=True) as store:
        store.begin_planned(run_id="run-1", environment={}, arguments={}, cases=cases)
        store.append(records[:1])
        administer(*go)
        store.append(records[1:3])
        store.append(records[3:4])
        (spool,) = tmp_path.iterdir()
        told = capsys.readouterr().err
        assert told.count("does not answer") == 1
        assert f"torch-oracle push {spool.name} " in told
        with pytest.raises(UsageError, match=re.escape(spool.name)):
            store.end_run("run-1", state="complete")
        with spool.open("a") as file:
            file.write('{"run_id": "run-1", "torn')  # as a killed process leaves it
        administer(*come_back)
        # Another process delivers, which the sweep does not know.
        assert store.deliver(Spool(spool).records()) == 3
        store.append(records[4:])
        monkeypatch.setattr("results.store._RETRY_S", 0.0)
        store.end_run("run-1", state="complete")
        assert list(store.records()) == records
        assert not list(tmp_path.iterdir())
    administer(*drop)


def test_histories_move_to_a_server_and_back(store: Store, tmp_path):
    with Store.open(tmp_path / "a.db", create=True) as local:
        test_queries.filled(local)
    assert copy_runs(tmp_path / "a.db", URL).records == 600
    assert copy_runs(tmp_path / "a.db", URL) == Copied()
    assert copy_runs(URL, tmp_path / "b.db").records == 600
    assert test_transfer.contents(tmp_path / "a.db") == test_transfer.contents(tmp_path / "b.db")


def test_queries_find_what_is_in_the_records(store: Store, tmp_path: Path):
    test_queries.filled(store)
    for glob in test_queries.GLOBS:
        test_queries.test_a_summary_by_queries_is_that_of_the_records(store, "run-1", glob)
    test_queries.test_a_comparison_by_queries_is_that_of_the_records(store)
    with Store.open(tmp_path / "local.db", create=True) as local:
        test_queries.filled(local)
        base, head = store.run("run-1"), store.run("run-2")
        expected, *mixed = (
            compare_runs(*stores, base_run=base, head_run=head).to_json()
            for stores in ((store, store), (local, store), (store, local))
        )
        assert mixed == [expected, expected]
    test_queries.test_the_queries_of_the_documentation_run(store)
    test_queries.test_the_views_say_what_the_records_say(store)
    counts = [(one.planned, one.recorded, one.facts.subjects) for one in run_summaries(store)]
    assert counts == [(301, 300, test_queries.SUBJECTS), (301, 300, test_queries.SUBJECTS)]
    (case,) = case_history(store, fabricate.case("not/run").case_id)
    assert case.status is Status.NOT_RUN
