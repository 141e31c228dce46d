"""The history of a case over runs, and the list of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.verdict import Status
from results.history import case_history, run_summaries
from results.store import Store
from results.tests import fabricate

FIRST, OTHER = fabricate.case("add/float32/forward/0"), fabricate.case("mul/float32/forward/0", subject="aot_eager")


def environment(torch: str) -> dict:
    return {
        "worker": {"torch": torch, "torch_git": "cf30153c", "devices": []},
        "cpu_model": "AMD EPYC",
        "machine": "x86_64",
    }


@pytest.fixture
def store(tmp_path: Path):
    changed = replace(FIRST, program={**FIRST.program, "source": "def program(x):\n    return x + 2\n"})
    with Store.open(tmp_path / "runs.db", create=True) as opened:
        records = [fabricate.record(FIRST, speedup=2.0), fabricate.record(OTHER, Status.KNOWN)]
        fabricate.write_run(opened, records, run_id="run-1", environment=environment("2.12.0"))
        records = [fabricate.record(FIRST, Status.FAIL_ACCURACY)]
        fabricate.write_run(opened, records, run_id="run-2", environment=environment("2.13.0"), unrecorded=[OTHER])
        opened.begin_planned(run_id="run-3", environment={}, arguments={}, cases=[changed])
        opened.append([fabricate.record(FIRST, run_id="run-3", speedup=0.5)])
        yield opened


def test_the_history_of_a_case_has_each_run_that_planned_it_with_what_it_was_made_with(store: Store):
    history = case_history(store, FIRST.case_id)
    assert [one.facts.run_id for one in history] == ["run-1", "run-2", "run-3"]
    assert [one.status for one in history] == [Status.PASS, Status.FAIL_ACCURACY, Status.PASS]
    assert [one.facts.torch for one in history] == ["2.12.0", "2.13.0", ""]
    assert [one.record.measurements.speedup for one in history] == [2.0, None, 0.5]
    first, second, third = (one.program_hash for one in history)
    assert first == second != third
    assert (history[0].facts.machine, history[0].facts.torch_git) == ("AMD EPYC", "cf30153c")
    assert [one.facts.run_id for one in case_history(store, FIRST.case_id, limit=2)] == ["run-2", "run-3"]
    assert case_history(store, "no/such@case") == []


def test_a_planned_case_without_a_record_is_in_its_history(store: Store):
    assert [one.status for one in case_history(store, OTHER.case_id)] == [Status.KNOWN, Status.NOT_RUN]


def test_a_list_of_runs_counts_their_cases(store: Store):
    runs = run_summaries(store)
    counts = [(one.planned, one.recorded, one.passed, one.new, one.known, one.not_compared) for one in runs]
    assert counts == [(2, 2, 1, 0, 1, 0), (2, 1, 0, 1, 0, 0), (1, 1, 1, 0, 0, 0)]
    assert [(one.timed, one.speedup) for one in runs] == [(1, pytest.approx(2.0)), (0, None), (1, pytest.approx(0.5))]
    assert [one.facts.subjects for one in runs] == [("inductor", "aot_eager"), ("inductor", "aot_eager"), ("inductor",)]
    assert [one.facts.run_id for one in run_summaries(store, limit=1)] == ["run-3"]
