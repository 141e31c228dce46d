"""Old runs are removed with what only they have; the newest of each choice, and those that go on, stay."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from results.commands import prune as prune_command
from results.prune import Pruned, prune
from results.schema import CASES, META, PROGRAMS, RECORDS, RUNS
from results.store import Store
from results.tests import fabricate

_BEFORE = datetime(2026, 6, 1, tzinfo=timezone.utc)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of January: two runs of inductor with a program of their own each, one of aot_eager, one that goes on. One of July."""
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        for run_id, subject, source in (
            ("old", "inductor", "1"), ("older", "inductor", "shared"), ("other", "aot_eager", "shared"),
            ("running", "inductor", "2"), ("new", "inductor", "shared"),
        ):  # fmt: skip
            case = fabricate.case(subject=subject, source=source)
            store.begin_run(run_id=run_id, environment={}, arguments={})
            store.plan(run_id, [case])
            store.finish_planning(run_id)
            store.append([fabricate.record(case, run_id=run_id)])
            if run_id != "running":
                store.end_run(run_id, state="complete")
        with store.transaction() as transaction:
            started = sa.case((RUNS.c.run_id == "new", "2026-07-01T00:00:00+00:00"), else_="2026-01-01T00:00:00+00:00")
            transaction.connection.execute(sa.update(RUNS).values(started_at=started))
    return path


def test_old_runs_go_with_their_cases_records_and_programs(path: Path) -> None:
    with Store.open(path, create=False) as store:
        told = prune(store, before=_BEFORE, is_trial=True)
        assert told == Pruned(runs=("old", "older"), cases=2)
        assert len(store.runs()) == 5
        assert prune(store, before=_BEFORE) == Pruned(runs=("old", "older"), cases=2, programs=1)
        assert [run.run_id for run in store.runs()] == ["other", "running", "new"]
        assert [len(list(store.records(run.run_id))) for run in store.runs()] == [1, 1, 1]
        with store.reading() as connection:
            left = [
                connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()
                for table in (CASES, RECORDS, PROGRAMS)
            ]
        assert left == [3, 3, 2]
        assert prune(store, before=_BEFORE) == Pruned(runs=())


def test_runs_without_a_date_stay_and_kept_sums_go(path: Path) -> None:
    with Store.open(path, create=False) as store:
        with store.transaction() as transaction:
            for run_id, started in (("old", "soon"), ("older", "2026-01-01T00:00:00")):
                transaction.connection.execute(
                    sa.update(RUNS).where(RUNS.c.run_id == run_id).values(started_at=started)
                )
            runs = transaction.connection.execute(sa.select(RUNS.c.run)).scalars().all()
            transaction.connection.execute(sa.insert(META), [{"key": f"past/{run}", "value": "{}"} for run in runs])
        with store.reading() as connection:
            before = set(connection.execute(sa.select(META.c.key)).scalars())
        assert prune(store, before=_BEFORE) == Pruned(runs=("older",), cases=1)
        with store.reading() as connection:
            after = set(connection.execute(sa.select(META.c.key)).scalars())
        assert after < before
        assert {key.partition("/")[0] for key in before - after} == {"error_sums", "past"}
        assert len(before - after) == 2


def test_the_command_lists_what_goes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prune_command(older_days=1, db=str(path), trial=True)
    assert capsys.readouterr().out == f"old\nolder\n2 runs and 2 cases would be removed from {path}\n"
    prune_command(older_days=1, db=str(path))
    assert "2 runs and 2 cases removed from" in capsys.readouterr().out
