"""What queries find in the database is what Python finds in all records of the run."""

from __future__ import annotations

import math
import random
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from oracle.records import Record
from oracle.verdict import BiasSum, Status
from results import compare, export, gate, queries, report
from results.baseline import AcceptedFailure
from results.bias import find_bias
from results.pairs import Pair, compared_rows, pairs_of, read_pairs
from results.render import plain
from results.speed.measured import MeasuredCase
from results.store import Store
from results.tests import fabricate
from results.transfer import copy_runs

# What programs and users may write into a field.
HOSTILE = (
    *("", "'; DROP TABLE runs; --", "a\0b", "\udc80", "%s %(x)s {y} :z", "\x1b[2J\u202e", "ünïcödé \U0001f4a5"),
    *("]", "\\", "a\nb"),
)
SUBJECTS = ("inductor", "aot_eager", "inductor[mode=max-autotune]")
GLOBS = (
    *("*", "*@inductor", "opinfo/op[0-3]/*", "opinfo/op[!0-3]/*", "*[mode=max-autotune]", "opinfo/op?/*'; DROP*"),
    *("*\\*", "a.c", "*]*"),
)


def made_up(run_id: str, seed: int) -> list[Record]:
    """Records with every status and hostile strings, some of them timed, some with error sums."""
    draw = random.Random(seed)
    records = []
    for index in range(300):
        word = HOSTILE[index % len(HOSTILE)]
        case = fabricate.case(
            f"op{index % 7}/float32/{index}{word}", subject=SUBJECTS[index % 3], group=f"op{index % 7}"
        )
        status = draw.choice([*Status, *[Status.PASS] * len(Status)])
        symptom = f"call 0: output[0]: {draw.random()} {word}" if status is not Status.PASS else ""
        speedup = draw.choice([None, math.nan, 0.5, 2.0]) if status is Status.PASS else None
        compile_cold_s = draw.choice([0.2, 9.0])
        record = fabricate.record(
            case, status, run_id=run_id, symptom=symptom, speedup=speedup, compile_cold_s=compile_cold_s
        )
        values = draw.choice([3.0, 3.0, 3.0, math.nan])
        bias = BiasSum(dtype="bfloat16", eps=2.0**-8, tensors=1, weight=4, subject=values, eager=0.25, variance=1e-6)
        explained = (word,) if index % 5 == 0 else ()
        verdict = replace(record.verdict, bias=(bias,) if index % 4 else (), explained=explained)
        records.append(replace(record, verdict=verdict))
    return records


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("runs") / "runs.db", create=True) as opened:
        yield filled(opened)


def filled(store: Store) -> Store:
    for run_id, seed in (("run-1", 1), ("run-2", 2)):
        records = made_up(run_id, seed)
        fabricate.write_run(store, records, run_id=run_id, unrecorded=[fabricate.case("not/run")] if seed == 2 else ())
    with store.transaction() as transaction:  # a complete run with a case that has no record
        transaction.add_cases("run-1", [fabricate.case("op0/float32/missing")])
    return store


def shown(selected: report.Selected, limit: int | None) -> str:
    return "\n".join(part if isinstance(part, str) else plain(part) for part in report.summary(selected, limit=limit))


@pytest.mark.fractional
@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
@pytest.mark.parametrize("glob", GLOBS)
def test_a_summary_by_queries_is_that_of_the_records(store: Store, run_id: str, glob: str):
    run = store.run(run_id)
    records = [r for r in store.records(run_id, with_missing=True) if r.case_id == glob or fnmatchcase(r.case_id, glob)]
    for limit in (None, 20):
        assert shown(report.queried(store, run, glob, limit=limit), limit) == shown(report.selected(records), limit)
    found = [record.case_id for record in store.records(run_id, with_missing=True, where=queries.case_filter(glob))]
    assert found == [record.case_id for record in records]


def test_a_comparison_by_queries_is_that_of_the_records(store: Store):
    first, second = store.run("run-1"), store.run("run-2")
    for base, head in ((first, second), (second, first), (first, first)):
        records = [list(store.records(run.run_id, with_missing=True)) for run in (base, head)]
        expected = compare.compare(*records, base_run=base, head_run=head)
        assert compare.compare_runs(store, store, base_run=base, head_run=head).to_json() == expected.to_json()


@pytest.mark.parametrize("name", ["same.db", "other #1?.db"])
def test_runs_of_two_databases_compare_as_those_of_one(store: Store, tmp_path: Path, name: str):
    """The second file is attached to the first, whatever its name."""
    copy_runs(str(store.location), str(tmp_path / name))
    base, head = store.run("run-1"), store.run("run-2")
    with Store.open(tmp_path / name, create=False, read_only=True) as other:
        for old, new in ((store, other), (other, store)):
            found = compare.compare_runs(old, new, base_run=base, head_run=head)
            assert found.to_json() == compare.compare_runs(store, store, base_run=base, head_run=head).to_json()
    joined = read_pairs(store, base, store, head)
    apart = pairs_of(compared_rows(store, base), compared_rows(store, head))
    assert sorted(map(_told, joined)) == sorted(map(_told, apart))
    assert joined.alike == apart.alike > 0


def _told(pair: Pair) -> str:
    """A pair in words. What was measured says something only of cases that pass in both runs."""
    is_passing = all(row is not None and row.status == "pass" for row in pair)
    return repr([row if is_passing or row is None else row._replace(measured=MeasuredCase()) for row in pair])


def test_the_gate_by_queries_is_that_of_the_records(store: Store):
    for run_id in ("run-1", "run-2"):
        run = store.run(run_id)
        records = list(store.records(run_id, with_missing=True))
        accepted = {
            record.case_id: AcceptedFailure(
                case_id=record.case_id,
                status=Status.FAIL_ACCURACY,
                expires=date(2026, 12, 31),
                reason="",
                link="",
                line=i,
            )
            for i, record in enumerate(records[::3])
        }
        reports = [
            gate.gate(cases, accepted, run=run, today=date(2026, 6, 15)).to_json()
            for cases in (gate.Cases.of(records), gate.Cases.read(store, run, accepted))
        ]
        for one in reports:
            one["problems"] = sorted(map(str, one["problems"]))
        assert reports[0] == reports[1]
        assert gate.failing(gate.Cases.of(records)) == gate.failing(gate.Cases.read(store, run, {}))


@pytest.mark.parametrize("format", ["markdown", "junit", "jsonl", "csv"])
def test_an_export_by_queries_is_that_of_the_records(store: Store, tmp_path: Path, format: str):
    run = store.run("run-2")
    for glob in ("*", "*@inductor"):
        records = [r for r in store.records("run-2", with_missing=True) if fnmatchcase(r.case_id, glob)]
        export.export(records, run=run, path=tmp_path / "records", format=format)
        export.export_run(store, run, glob, path=tmp_path / "run", format=format)
        assert (tmp_path / "run").read_text(encoding="utf-8") == (tmp_path / "records").read_text(encoding="utf-8")


def test_the_queries_of_the_documentation_run(store: Store):
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
    found = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    assert len(found) >= 3
    with store.reading() as connection:
        rows = [connection.execute(sa.text(query)).all() for query in found]
    assert rows[0]
    assert rows[2]


def test_the_views_say_what_the_records_say(store: Store):
    with store.reading() as connection:
        runs = connection.execute(
            sa.text("SELECT run_id, planned, recorded, passed, new, known FROM v_runs ORDER BY run")
        )
        counted = [tuple(row) for row in runs]
        history = connection.execute(sa.text("SELECT count(*) FROM v_case_history")).scalar_one()
    statuses = [[r.verdict.status for r in store.records(run_id)] for run_id in ("run-1", "run-2")]
    expected = [
        (
            f"run-{number}",
            301,
            300,
            sum(status in (Status.PASS, Status.XPASS) for status in of_run),
            sum(status.is_finding for status in of_run),
            of_run.count(Status.KNOWN),
        )
        for number, of_run in enumerate(statuses, 1)
    ]
    assert (counted, history) == (expected, 602)


def test_error_sums_are_added_once_when_a_run_ends_and_anew_where_its_records_changed(tmp_path: Path):
    error = BiasSum(dtype="float32", eps=2.0**-23, tensors=1, weight=100, subject=80.0, eager=1.0, variance=0.5)
    records = []
    for sample in range(3):
        one = fabricate.record(fabricate.case(f"tanh/float32/forward/{sample}"), Status.PASS)
        records.append(replace(one, verdict=replace(one.verdict, bias=(error,))))
    path = fabricate.database(tmp_path / "x.db", records)
    statements: list[str] = []
    with Store.open(path, create=False, read_only=True) as store:
        event.listen(store._engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
        run = store.run()
        assert find_bias(records) == queries.bias_findings(store, run)
        assert not any("json_array_length" in said for said in statements), "the sums were added again"
    # As many records as before would have been needed.
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM records WHERE ordinal = 2")
    connection.commit()
    connection.close()
    with Store.open(path, create=False, read_only=True) as store:
        assert find_bias(records[:2]) == queries.bias_findings(store, store.run())


def test_a_copied_run_keeps_its_error_sums(tmp_path: Path):
    one = fabricate.record(fabricate.case("tanh/float32/forward/0"), Status.PASS)
    error = BiasSum(dtype="float32", eps=2.0**-23, tensors=1, weight=100, subject=80.0, eager=1.0, variance=0.5)
    path = fabricate.database(tmp_path / "x.db", [replace(one, verdict=replace(one.verdict, bias=(error,)))])
    copy_runs(path, tmp_path / "copy.db")
    found = [
        sqlite3.connect(name).execute("SELECT value FROM torch_oracle_meta WHERE key = 'error_sums/1'").fetchone()
        for name in (path, tmp_path / "copy.db")
    ]
    assert found[0] is not None
    assert found[0] == found[1]
