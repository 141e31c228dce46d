"""The weekly report: what is new, fixed, flaky and slower, each under its owner."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
import typer
from typer.testing import CliRunner

from oracle.errors import UsageError
from oracle.verdict import Status
from results import commands
from results.schema import RUNS
from results.store import Store
from results.tests import fabricate
from results.triage import NOBODY, Owners, read_owners

PASS, FAIL = Status.PASS, Status.FAIL_ACCURACY
# Status of each case in each run; run-3 is two days before run-4, the others are older.
WEEKS = {
    "nn.broke": (PASS, PASS, PASS, FAIL),
    "nn.repaired": (FAIL, FAIL, FAIL, PASS),
    "linalg.flaky": (PASS, FAIL, PASS, FAIL),
    "linalg.<b>new | hostile": (PASS, PASS, PASS, FAIL),
    "other.fine": (PASS, PASS, PASS, PASS),
}
STARTED = ("2026-03-01", "2026-03-10", "2026-03-18", "2026-03-20")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "weeks.db"
    with Store.open(path, create=True) as store:
        for number, started in enumerate(STARTED, 1):
            records = [
                fabricate.record(fabricate.case(f"{name}/0"), statuses[number - 1], speedup=1.0 if number == 4 else 2.0)
                for name, statuses in WEEKS.items()
            ]
            run_id = fabricate.write_run(store, records, run_id=f"run-{number}")
            values = {"started_at": f"{started}T03:00:00+00:00"}
            with store.transaction() as transaction:
                transaction._connection.execute(sa.update(RUNS).where(RUNS.c.run_id == run_id).values(values))
    return path


def run(*words: str | Path) -> str:
    app = typer.Typer()
    app.command("triage")(commands.triage)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_week_is_told_by_owner(db: Path, tmp_path: Path) -> None:
    owners = tmp_path / "OWNERS"
    owners.write_text("# ours\nopinfo/* @everybody\nopinfo/nn.* @nn team\n\nopinfo/linalg.*@inductor @linear\n")
    text = run("--db", db, "--owners", owners)
    assert text.startswith("# run-4 since run-2\n")  # run-3 is younger than a week
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert list(sections) == ["@everybody", "@linear", "@nn team"]
    nn, linear = sections["@nn team"], sections["@linear"]
    assert "### new failures (1)" in nn
    assert "opinfo/nn.broke/0@inductor" in nn.split("### fixed")[0]
    assert "opinfo/nn.repaired/0@inductor" in nn.split("### fixed")[1]
    assert "### flaky cases (1)" in linear
    assert "&lt;b&gt;new \\| hostile" in linear
    assert "<b>" not in text
    assert "### slower (1)" in sections["@everybody"]
    assert "100.0 % slower" in sections["@everybody"]


def test_the_base_may_be_named_and_must_exist(db: Path) -> None:
    assert run("--db", db, "--base", f"{db}#run-3").startswith("# run-4 since run-3\n")
    assert run("--db", db, "--days", "100").startswith("# run-4 since run-1\n")  # the first one, if none is as old
    with pytest.raises(UsageError, match="--base"):
        run("--db", db, "--run", "run-1")


@pytest.mark.parametrize("started", ["yesterday", "2026-03-01", ""])
def test_times_of_imported_runs_are_read_as_utc_or_not_at_all(db: Path, started: str) -> None:
    with Store.open(db, create=False) as store, store.transaction() as transaction:
        old = sa.update(RUNS).where(RUNS.c.run_id == "run-1").values(started_at=started)
        transaction.connection.execute(old)
    assert "# run-4 since run-2" in run("--db", db)
    with Store.open(db, create=False) as store, store.transaction() as transaction:
        transaction.connection.execute(sa.update(RUNS).where(RUNS.c.run_id == "run-4").values(started_at="soon"))
    with pytest.raises(UsageError, match="began at 'soon'"):
        run("--db", db)


def test_a_line_without_an_owner_is_named(tmp_path: Path) -> None:
    owners = tmp_path / "OWNERS"
    owners.write_text("opinfo/* @one\nopinfo/nn.*\n")
    with pytest.raises(UsageError, match="line 2"):
        read_owners(owners)
    assert Owners().of("opinfo/add/0@inductor") == NOBODY
    owners.write_text("*@inductor[mode=max-autotune] @tuning\n")
    assert read_owners(owners).of("opinfo/add/0@inductor[mode=max-autotune]") == "@tuning"
