"""Benchmarks as records of a results database, and the verdicts on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import _without
from benchmarks.harness import Row
from benchmarks.stored import checkout, write_run
from oracle.verdict import Status
from results.compare import compare
from results.store import Store


def row(case: str, ours: float, theirs: float, **fields) -> Row:
    """Five rounds with our times and a peer's, in seconds."""
    samples = {
        side: [(0.0, seconds * factor) for factor in (1.0, 1.01, 0.99, 1.0, 1.02)]
        for side, seconds in (("refimpl", ours), ("torch", theirs))
    }
    return Row(**{"benchmark": "call", "case": case, "samples": samples, "ours": "refimpl", **fields})


def test_a_slower_call_path_is_told_by_compare(tmp_path: Path):
    database = str(tmp_path / "benchmarks.db")

    def run(ours: float) -> str:
        rows = [[row("slow", ours * noise, 2.0), row("same", noise, 2.0)] for noise in (1.0, 1.01, 0.99, 1.005)]
        return write_run(database, rows)

    first, second = run(1.0), run(1.2)
    with Store.open(database, create=False, read_only=True) as store:
        base, head = list(store.records(first)), list(store.records(second))
        comparison = compare(base, head, base_run=store.run(first), head_run=store.run(second))
    assert [record.case_id for record in base] == [
        "benchmarks/call/slow/torch@refimpl",
        "benchmarks/call/same/torch@refimpl",
    ]
    assert base[0].measurements.speedup == pytest.approx(2.0, rel=0.02)
    assert len(base[0].measurements.costs) == 4
    assert [(change.case_id, change.verdict.word.value) for change in comparison.speed] == [
        ("benchmarks/call/slow/torch@refimpl", "worse")
    ]
    assert comparison.base.environment.get("commit") == checkout().get("commit")


def test_a_side_that_failed_and_a_case_without_peer_are_records_too(tmp_path: Path):
    database = str(tmp_path / "benchmarks.db")
    alone = Row(benchmark="steps", case="a", samples={"refimpl": [(0.0, 3.0)]}, ours="refimpl")
    failed = Row(benchmark="steps", case="b", errors={"refimpl": "ValueError: no"}, ours="refimpl")
    run_id = write_run(database, [[alone, failed]])
    with Store.open(database, create=False, read_only=True) as store:
        one, other = store.records(run_id)
    assert (one.verdict.status, one.measurements.subject_s, one.measurements.speedup) == (Status.PASS, 3.0, None)
    assert (other.verdict.status, other.verdict.symptom) == (Status.FAIL_TO_RUN, "ValueError: no")


def test_options_of_the_database_are_not_given_on():
    words = ["capture_call", "--db", "x.db", "--repeat", "3", "--processes=5", "--commit", "HEAD~1"]
    assert _without(words, ("--db", "--processes", "--commit")) == ["capture_call", "--repeat", "3"]
