"""A database of an older version is migrated when it is opened for writing, and then is as a new one."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from oracle.errors import UsageError
from results.commands import migrate
from results.schema import DATABASE_VERSION, METADATA, VIEWS
from results.store import Store
from results.tests import fabricate

OLD = Path(__file__).parent / "goldens" / "schema-v1.sql"  # written by the last commit that made databases of version 1
VERSIONS = ("torch_oracle_meta", "alembic_version")
EXPECTED = [
    replace(record, measurements=replace(record.measurements, kernels=3)) if index == 1 else record
    for index, record in enumerate(fabricate.record_of_every_status())
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(OLD.read_text(encoding="utf-8"))
    connection.close()
    return path


def test_a_reader_of_an_older_database_is_told_what_to_do_and_changes_nothing(old: Path):
    before = old.read_bytes()
    with pytest.raises(UsageError, match=r"torch-oracle migrate .*old\.db"):
        Store.open(old, create=False, read_only=True)
    assert before == old.read_bytes()


def test_a_writer_migrates_an_older_database_once_and_says_so(old: Path, capsys: pytest.CaptureFixture[str]):
    with Store.open(old, create=False) as store:
        assert list(store.records()) == EXPECTED
        fabricate.write_run(store, EXPECTED, run_id="run-2")
    assert f"migrated from schema version 1 to {DATABASE_VERSION}" in capsys.readouterr().err
    with Store.open(old, create=False) as store:
        assert [run.run_id for run in store.runs()] == ["run-1", "run-2"]
    assert not capsys.readouterr().err


def test_a_migrated_database_has_the_tables_indices_and_views_of_a_new_one(old: Path, tmp_path: Path):
    new = fabricate.database(tmp_path / "new.db", EXPECTED)
    Store.open(old, create=False).close()
    schemas = []
    for path in (old, new):
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
            inspector = sa.inspect(connection)
            indices = {
                table: sorted(i["name"] or "" for i in inspector.get_indexes(table)) for table in METADATA.tables
            }
            views = {name: connection.exec_driver_sql(f"SELECT * FROM {name}").keys() for name in VIEWS}
            versions = [
                connection.exec_driver_sql(f"SELECT * FROM {name}").all()
                for name in ("torch_oracle_meta WHERE key = 'schema_version'", "alembic_version")
            ]
            schemas.append((indices, views, versions))
        engine.dispose()
    assert schemas[0] == schemas[1]


def test_facts_and_issues_of_older_rows_are_in_their_columns(old: Path):
    Store.open(old, create=False).close()
    connection = sqlite3.connect(old)
    run = connection.execute("SELECT torch, torch_git, triton, machine, suites, subjects FROM runs").fetchone()
    assert run == ("2.13.0+cpu", "cf30153c", "3.7.1", "AMD EPYC", '["opinfo"]', '["inductor"]')
    found = connection.execute(
        "SELECT status, issue, observed FROM results WHERE issue != '' ORDER BY status"
    ).fetchall()
    assert found == [("known", "made-up-issue", "fail_accuracy"), ("xpass", "made-up-issue", "")]
    connection.close()


def test_a_migrated_database_keeps_with_its_runs_what_comparisons_need(old: Path, capsys: pytest.CaptureFixture[str]):
    connection = sqlite3.connect(old)
    connection.execute("UPDATE runs SET state = 'complete', arguments = ?", (json.dumps({"options": {"speed": True}}),))
    connection.commit()
    connection.close()
    assert kept_facts(old) == []
    Store.open(old, create=False).close()
    assert kept_facts(old) == ["error_sums/1", "past/1"]
    connection = sqlite3.connect(old)  # as a version left it that had this schema, and kept nothing
    connection.execute("DELETE FROM torch_oracle_meta WHERE key != 'schema_version'")
    connection.commit()
    connection.close()
    capsys.readouterr()
    migrate(str(old))
    assert "summaries of 1 runs were made" in capsys.readouterr().out
    assert kept_facts(old) == ["error_sums/1", "past/1"]
    migrate(str(old))
    assert "summaries" not in capsys.readouterr().out


def kept_facts(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    keys = connection.execute("SELECT key FROM torch_oracle_meta WHERE key != 'schema_version' ORDER BY key").fetchall()
    connection.close()
    return [key for (key,) in keys]
