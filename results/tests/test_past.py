"""Moments of earlier runs: they tell what the measurements themselves tell, to the last bit, read anew or kept with the run."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oracle.costs import Run, duration_class
from oracle.verdict import Status
from results.compare import compare, compare_runs
from results.history import speed_history
from results.kept_past import past_run
from results.speed import SpeedCase
from results.speed.costs import CostTable, PastCosts
from results.speed.measured import MeasuredCase, cold_costs, cpu_costs, memory_costs, speed_costs
from results.speed.past import Past, PastRun, Source
from results.store import Store
from results.tests import fabricate
from results.transfer import copy_runs

SECONDS = (5e-5, 2e-3, 0.5, None)  # of a call: one of each class


def measured_run(rng: np.random.Generator, *, fewest: int) -> dict[str, MeasuredCase]:
    """A run of some of forty cases, with processes of several lengths; some measured nothing, or not a number."""
    found = {}
    for number in range(40):
        if rng.random() < 0.3:
            continue
        lengths = rng.integers(fewest, 10, size=rng.integers(0, 6))
        costs = [tuple(rng.normal(0, 0.1, size=length).tolist()) for length in lengths]
        if rng.random() < 0.1 and costs:
            costs[0] = (math.nan,) * len(costs[0])
        found[f"case-{number}"] = MeasuredCase(
            subject_s=SECONDS[number % 4],
            speedup=float(rng.uniform(0.5, 2)),
            compile_cold_s=float(rng.uniform(0.1, 2)) if rng.random() < 0.8 else None,
            graph_breaks=int(rng.integers(3)) if rng.random() < 0.8 else None,
            costs=costs,
            compile_cpu_s=rng.uniform(0.1, 2, size=rng.integers(0, 4)).tolist(),
            peak_memories=rng.integers(1 << 18, 1 << 22, size=rng.integers(0, 4)).tolist(),
        )
    return found


@pytest.mark.parametrize("fewest", [0, 1, 6])  # costs of a process: with six, the mean or the lowest third counts
def test_a_table_of_moments_is_that_of_the_measurements(fewest: int):
    rng = np.random.default_rng(fewest)
    *runs, base, head = (measured_run(rng, fewest=fewest) for _ in range(9))
    names = [name for name in base if name in head]
    past = Past(names, [PastRun.of(run) for run in runs])
    kinds: tuple[tuple[Callable[[MeasuredCase], Run], Source | None], ...] = (
        (speed_costs, None),
        (cpu_costs, "compile CPU"),
        (cold_costs, "compile wall"),
        (memory_costs, "peak memory"),
    )
    for costs, source in kinds:
        classes = {name: duration_class(base[name].subject_s) if source is None else "" for name in names}
        plain = {
            name: SpeedCase(base=costs(base[name]), head=costs(head[name]), noise_class=classes[name]) for name in names
        }
        whole = {
            name: case._replace(history=tuple(costs(run[name]) for run in runs if name in run))
            for name, case in plain.items()
        }
        given = PastCosts(
            shortest=past.shortest(names).tolist() if source is None else [math.inf] * len(names),
            moments=lambda centres, source=source: past.moments(names, [source or centre for centre in centres]),
        )
        expected, actual = CostTable.of(whole), CostTable.of(plain, given)
        for array in ("count", "mean", "squares"):
            np.testing.assert_array_equal(getattr(expected, array), getattr(actual, array), strict=True)


def test_counts_are_those_of_the_runs_that_know_them():
    counts = ({"a": 1, "b": 2}, {"b": 3}, {"a": None, "b": 4}, {"a": 0})
    runs = [PastRun.of({name: MeasuredCase(recompiles=count) for name, count in run.items()}) for run in counts]
    past = Past(["b", "a", "new"], runs)
    assert [past.counts(name, "recompiles") for name in ("a", "b", "new")] == [[1, 0], [2, 3, 4], []]


def speed_runs(path: Path, runs: int = 5) -> Path:
    """A database with runs of a dozen cases that measured speed. One case fails in some runs, and one was not timed in them."""
    rng = np.random.default_rng(1)
    with Store.open(path, create=True) as store:
        for run in range(runs):
            records = []
            for number in range(12):
                speedup = None if number == 1 and run % 2 else float(rng.uniform(0.9, 1.1))
                one = fabricate.record(
                    fabricate.case(f"add/float32/forward/{number}"),
                    Status.FAIL_ACCURACY if number == 0 and run % 2 else Status.PASS,
                    speedup=speedup,
                    compile_cold_s=float(rng.uniform(1, 1.5)),
                )
                breaks = int(rng.integers(2))
                records.append(replace(one, measurements=replace(one.measurements, graph_breaks=breaks)))
            arguments = {**fabricate.ARGUMENTS, "options": {"speed": True}}
            fabricate.write_run(store, records, run_id=f"run-{run}", arguments=arguments)
    return path


def compared(path: Path) -> str:
    """The comparison of the last two runs, as JSON."""
    with Store.open(path, create=False, read_only=True) as store:
        *_, base, head = store.runs()
        past = speed_history(store, base)
        assert len(past) == 3
        return json.dumps(compare_runs(store, store, base_run=base, head_run=head, history=past).to_json())


def kept(path: Path) -> Mapping[str, str]:
    """What is kept of the runs' measurements."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT key, value FROM torch_oracle_meta WHERE key LIKE 'past/%'").fetchall()
    connection.close()
    return dict(found)


def test_a_comparison_says_the_same_of_records_and_of_what_is_kept(tmp_path: Path):
    path = speed_runs(tmp_path / "x.db")
    with Store.open(path, create=False) as store:
        *past, base, head = store.runs()
        records = [list(store.records(run.run_id)) for run in (*past, base, head)]
        of_records = compare(records[-2], records[-1], base_run=base, head_run=head, history=records[:-2])
    assert json.dumps(of_records.to_json()) == compared(path)
    copy_runs(path, tmp_path / "copy.db")
    assert kept(tmp_path / "copy.db") == kept(path)
    assert len(kept(path)) == 5


def test_a_run_that_is_pruned_while_a_comparison_reads_is_no_history(tmp_path: Path):
    with Store.open(speed_runs(tmp_path / "x.db"), create=False) as store, store.reading() as connection:
        assert past_run(connection, "pruned", ["add/float32/forward/0"], recorded=12).case_ids == ()


@pytest.mark.parametrize(
    "damaged", [None, "{", "[]", '{"run": "run-0", "records": 12}', "another run's", "short", "another definition"]
)
def test_moments_that_are_absent_damaged_or_of_other_records_are_made_anew(tmp_path: Path, damaged: str | None):
    path = speed_runs(tmp_path / "x.db")
    expected, values = compared(path), kept(path)
    if damaged == "another run's":
        damaged = values["past/2"]
    elif damaged == "short":
        damaged = json.dumps({**json.loads(values["past/1"]), "numbers": "eJwDAAAAAAE="})
    elif damaged == "another definition":
        read = json.loads(values["past/1"])
        damaged = json.dumps({**json.loads(values["past/2"]), "run": read["run"], "definition": 0})
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM torch_oracle_meta WHERE key = 'past/1'")
    if damaged is not None:
        connection.execute("INSERT INTO torch_oracle_meta VALUES ('past/1', ?)", (damaged,))
    connection.commit()
    connection.close()
    assert expected == compared(path)
