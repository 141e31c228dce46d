"""Whole histories move between databases, and moving them again changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.verdict import Status
from results.store import Store
from results.tests import fabricate, test_queries
from results.transfer import Copied, copy_runs


def contents(path: Path | str) -> list:
    with Store.open(path, create=False, read_only=True) as store:
        # As text, in which NaN equals NaN.
        return [(run, store.planned(run.run_id), repr(list(store.records(run.run_id)))) for run in store.runs()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "a.db", create=True) as store:
        test_queries.filled(store)
    return tmp_path / "a.db"


def test_every_run_is_copied_with_all_that_it_has_once(source: Path, tmp_path: Path):
    target = tmp_path / "b.db"
    assert copy_runs(source, target) == Copied(runs=2, cases=602, records=600)
    assert contents(source) == contents(target)
    assert copy_runs(source, target) == Copied()
    assert contents(source) == contents(target)


def test_a_run_that_went_on_is_completed_and_other_runs_of_the_target_stay(source: Path, tmp_path: Path):
    target = fabricate.database(tmp_path / "b.db", [fabricate.record(fabricate.case())], run_id="own")
    copy_runs(source, target)
    case = fabricate.case("not/run")
    with Store.open(source, create=False) as store:
        store.append([fabricate.record(case, run_id="run-2")])
        store.plan_further("run-2", [fabricate.case("further")])
        store.append([fabricate.record(fabricate.case("further"), run_id="run-2")])
        store.end_run("run-2", state="complete")
    assert copy_runs(source, target) == Copied(runs_completed=1, cases=1, records=2)
    assert contents(source) == contents(target)[1:]


def test_records_that_differ_are_refused_by_case_and_nothing_of_the_run_is_copied(tmp_path: Path):
    cases = [fabricate.case(f"add/{i}") for i in range(2)]
    ours = fabricate.database(tmp_path / "a.db", map(fabricate.record, cases))
    theirs = fabricate.database(
        tmp_path / "b.db", [replace(fabricate.record(cases[0], Status.CRASH))], unrecorded=cases[1:]
    )
    before = contents(theirs)
    with pytest.raises(UsageError, match=cases[0].case_id):
        copy_runs(ours, theirs)
    assert before == contents(theirs)
