"""The store: what is written is what is read, and nothing is lost, doubled or half-written."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.errors import InternalError, UsageError
from oracle.records import PlannedCase
from oracle.verdict import Status
from results.schema import FLAT_NAMES, flatten, unflatten
from results.store import Store
from results.tests import fabricate


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "results.db", create=True) as opened:
        yield opened


def begin(store: Store, cases: list[PlannedCase], run_id: str = "run-1") -> None:
    store.begin_run(run_id=run_id, environment=fabricate.ENVIRONMENT, arguments=fabricate.ARGUMENTS)
    store.plan(run_id, cases)
    store.finish_planning(run_id)


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
def test_a_record_of_every_status_comes_back_as_it_was(store: Store, status: Status):
    expected = fabricate.record(fabricate.case(), status, speedup=1.5)
    fabricate.write_run(store, [expected])
    assert [expected] == list(store.records())


def test_a_record_with_every_optional_field_empty_comes_back_as_it_was(store: Store):
    expected = replace(
        fabricate.record(fabricate.case()), measurements=type(fabricate.measurements())(), repro="", tags=()
    )
    fabricate.write_run(store, [expected])
    assert [expected] == list(store.records())


def test_nan_infinity_and_none_stay_apart(store: Store):
    record = fabricate.record(fabricate.case(), Status.FAIL_ACCURACY)
    worst = replace(fabricate.WORST, subject_error=math.nan, allowed_error=math.inf, ulp=None)
    fabricate.write_run(store, [replace(record, verdict=replace(record.verdict, worst=worst, max_ulp=-math.inf))])
    (read,) = store.records()
    assert read.verdict.worst is not None
    assert math.isnan(read.verdict.worst.subject_error or 0.0)
    assert read.verdict.worst.allowed_error == math.inf
    assert read.verdict.worst.ulp is None
    assert read.verdict.max_ulp == -math.inf


def test_a_seed_of_all_64_bits_and_an_empty_index_survive(store: Store):
    record = fabricate.record(fabricate.case(), Status.FAIL_ACCURACY)
    expected = replace(
        record, seed=2**64 - 1, verdict=replace(record.verdict, worst=replace(fabricate.WORST, index=()))
    )
    fabricate.write_run(store, [expected])
    assert [expected] == list(store.records())


def test_nul_and_lone_surrogates_in_a_traceback_are_escaped_not_refused(store: Store):
    record = replace(fabricate.record(fabricate.case()), traceback="a\0b \udc80 ∞")
    fabricate.write_run(store, [record])
    (read,) = store.records()
    assert read.traceback == "a\\x00b \\udc80 ∞"


def test_flatten_names_every_column_and_unflatten_inverts_it():
    for record in fabricate.record_of_every_status():
        row = flatten(record)
        assert set(row) == {*FLAT_NAMES, "extra"}
        assert unflatten(row, run_id=record.run_id) == record


def test_planned_cases_come_back_with_their_programs_in_planned_order(store: Store):
    cases = [fabricate.case(f"op{i}/float32", subject=subject) for i in (3, 1, 2) for subject in ("eager", "inductor")]
    begin(store, cases)
    assert cases == store.planned()
    assert store.program(cases[2].case_id) == cases[2].program


def test_a_program_is_stored_once_for_all_subjects_and_runs(store: Store, tmp_path: Path):
    cases = [fabricate.case(subject=subject) for subject in ("eager", "dynamo", "inductor")]
    begin(store, cases)
    begin(store, cases, "run-2")
    with sqlite3.connect(tmp_path / "results.db") as connection:
        assert connection.execute("SELECT count(*) FROM programs").fetchone() == (1,)


def test_the_keyword_order_of_a_program_is_kept(store: Store):
    case = replace(fabricate.case(), program={"kwargs": {"b": 1, "a": 2}})
    begin(store, [case])
    assert list(store.planned()[0].program["kwargs"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("state", "word"),
    [("planning", "not_run"), ("running", "not_run"), ("interrupted", "not_run"), ("complete", "missing")],
)
def test_a_planned_case_without_record_was_not_run_and_is_missing_only_in_a_complete_run(
    store: Store, tmp_path: Path, state: str, word: str
):
    done, left = fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")
    fabricate.write_run(store, [fabricate.record(done, Status.CRASH)], unrecorded=[left])
    with sqlite3.connect(tmp_path / "results.db") as connection:
        connection.execute("UPDATE runs SET state = ?", (state,))
    absent = list(store.records(with_missing=True))[1]
    assert (absent.case_id, absent.verdict.status.value) == (left.case_id, word)
    assert state in absent.verdict.symptom
    with sqlite3.connect(tmp_path / "results.db") as connection:  # the view for queries by hand says the same
        rows = connection.execute("SELECT group_name, status FROM results ORDER BY case_id").fetchall()
    assert rows == [("add", "crash"), ("sub", word)]


# ------------------------------------------------------------------------------------------------------ the contract


def test_a_second_record_of_a_case_is_refused_with_its_whole_batch(store: Store):
    first, second = fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")
    begin(store, [first, second])
    store.append([fabricate.record(first)])
    with pytest.raises(InternalError, match="second record"):
        store.append([fabricate.record(second), fabricate.record(first)])
    assert [record.case_id for record in store.records()] == [first.case_id]


def test_a_record_of_a_case_that_was_not_planned_is_refused(store: Store):
    begin(store, [fabricate.case("add/float32/0")])
    with pytest.raises(InternalError, match=r"opinfo/sub/float32/0@inductor, which is not planned"):
        store.append([fabricate.record(fabricate.case("sub/float32/0"))])


def test_a_case_planned_twice_is_refused_and_nothing_of_the_call_is_kept(store: Store):
    store.begin_run(run_id="run-1", environment={}, arguments={})
    twice = fabricate.case("add/float32/0")
    with pytest.raises(InternalError, match=r"opinfo/add/float32/0@inductor is planned twice"):
        store.plan("run-1", [fabricate.case("sub/float32/0"), twice, twice])
    assert store.planned("run-1") == []
    store.plan("run-1", [twice])
    with pytest.raises(InternalError, match="planned twice"):
        store.plan("run-1", [twice])


def test_planning_after_the_planned_set_is_complete_is_refused(store: Store):
    begin(store, [fabricate.case()])
    with pytest.raises(InternalError, match="already complete"):
        store.plan("run-1", [fabricate.case("other/float32/0")])


def test_a_run_cannot_end_as_complete_while_a_case_has_no_record(store: Store):
    begin(store, [fabricate.case()])
    with pytest.raises(InternalError, match="1 of 1 planned cases have no record"):
        store.end_run("run-1", state="complete")
    store.end_run("run-1", state="interrupted")
    assert store.run("run-1").state == "interrupted"


def test_a_run_begun_twice_and_an_unknown_run_are_refused(store: Store):
    begin(store, [])
    with pytest.raises(InternalError, match="begun a second time"):
        store.begin_run(run_id="run-1", environment={}, arguments={})
    with pytest.raises(InternalError, match="never begun"):
        store.plan("run-2", [fabricate.case()])
    with pytest.raises(UsageError, match="run 'run-2' is not in"):
        store.run("run-2")


def test_resume_lists_exactly_the_cases_without_record_in_planned_order(store: Store):
    cases = [fabricate.case(f"op/float32/{i}") for i in range(7)]
    begin(store, cases)
    store.append([fabricate.record(cases[i]) for i in (5, 0, 2)])
    assert store.unfinished("run-1") == [cases[i] for i in (1, 3, 4, 6)]
    store.append([fabricate.record(case) for case in store.unfinished("run-1")])
    assert store.unfinished("run-1") == []
    store.end_run("run-1", state="complete")
    assert store.run().is_complete


def test_only_a_run_with_a_complete_plan_that_did_not_end_can_be_resumed(store: Store):
    assert store.resumable_run() is None
    store.begin_run(run_id="planning", environment={}, arguments={})
    assert store.resumable_run() is None
    begin(store, [fabricate.case()], "killed")
    fabricate.write_run(store, [fabricate.record(fabricate.case())], run_id="complete")
    assert store.resumable_run() == "killed"
    assert store.run().run_id == "complete"


def test_the_latest_run_is_the_one_begun_last_and_runs_are_kept_apart(store: Store):
    case = fabricate.case()
    fabricate.write_run(store, [fabricate.record(case, Status.CRASH)], run_id="b")
    fabricate.write_run(store, [fabricate.record(case, Status.PASS)], run_id="a", arguments={"suite": ["x"]})
    assert [run.run_id for run in store.runs()] == ["b", "a"]
    assert store.arguments() == {"suite": ["x"]}
    assert store.environment("b") == fabricate.ENVIRONMENT
    assert [record.verdict.status for record in store.records("b")] == [Status.CRASH]
    assert [record.verdict.status for record in store.records("latest")] == [Status.PASS]


def test_a_planned_case_without_record_is_read_only_when_asked_for(store: Store):
    done, left = fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")
    fabricate.write_run(store, [fabricate.record(done)], unrecorded=[left])
    assert [record.case_id for record in store.records()] == [done.case_id]
    absent = list(store.records(with_missing=True))[1]
    assert (absent.case_id, absent.verdict.status) == (left.case_id, Status.NOT_RUN)
    assert not absent.verdict.status.is_finding
    assert absent.verdict.symptom == "planned, not run yet: the run is interrupted"


def test_a_big_batch_and_single_records_find_their_cases_alike(store: Store):
    cases = [fabricate.case(f"op/float32/{i}") for i in range(1201)]
    begin(store, cases)
    store.append([fabricate.record(cases[-1])])
    store.append([fabricate.record(case) for case in cases[:-1]])
    assert [record.case_id for record in store.records()] == [case.case_id for case in cases]


def test_a_reader_sees_what_a_writer_has_appended_so_far(store: Store, tmp_path: Path):
    cases = [fabricate.case(f"op/float32/{i}") for i in range(2)]
    begin(store, cases)
    with Store.open(tmp_path / "results.db", create=False, read_only=True) as reader:
        assert list(reader.records()) == []
        store.append([fabricate.record(cases[0])])
        assert len(list(reader.records())) == 1


def test_a_run_begun_with_its_plan_is_written_whole_or_not_at_all(store: Store):
    cases = [fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")]
    with pytest.raises(InternalError, match="planned twice"):
        store.begin_planned(run_id="run-1", environment={}, arguments={}, cases=[*cases, cases[0]])
    assert store.runs() == []
    store.begin_planned(run_id="run-1", environment={}, arguments={"suite": ["x"]}, cases=cases)
    assert store.planned("run-1") == cases
    assert store.run().state == "running"


def test_further_cases_are_planned_in_a_run_that_goes_on_and_in_no_other(store: Store):
    first, second, third = (fabricate.case(f"op/float32/{i}") for i in range(3))
    begin(store, [first])
    store.append([fabricate.record(first, Status.FAIL_ACCURACY)])
    store.plan_further("run-1", [second])
    store.end_run("run-1", state="interrupted")
    store.plan_further("run-1", [third])
    assert store.unfinished("run-1") == [second, third]
    with pytest.raises(InternalError, match="planned twice"):
        store.plan_further("run-1", [third])
    store.append([fabricate.record(case) for case in (second, third)])
    store.end_run("run-1", state="complete")
    with pytest.raises(InternalError, match="which is complete"):
        store.plan_further("run-1", [fabricate.case("op/float32/3")])
