"""Since which run a case is slower, compiles longer, needs more memory or breaks the graph, in `history` and in `triage`."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from oracle.records import Measurements, Record
from oracle.verdict import Status
from results import commands
from results.history import case_history
from results.lasting import LastingChange, lasting_changes, lasting_steps, slower_since
from results.schema import RUNS
from results.speed.past import PastRun
from results.store import Store
from results.tests import fabricate

CASE = fabricate.case()
ARGUMENTS = {"suites": ["opinfo"], "options": {"speed": True}}


def measured(
    draw: random.Random, *, slower: float = 1.0, longer: float = 1.0, more: float = 1.0, **counts: Any
) -> Measurements:
    """What five processes measured, with noise of 2 % between them and 1 % between runs."""
    night = draw.gauss(0, 0.01)

    def costs(value: float, spread: float) -> list[float]:
        return [value * math.exp(night + draw.gauss(0, spread)) for _ in range(5)]

    plain = fabricate.measurements(2.0 / slower)
    return replace(
        plain,
        costs=tuple((math.log(cost),) for cost in costs(0.5 * slower, 0.02)),
        compile_cpu_s=tuple(costs(1.2 * longer, 0.04)[:3]),
        peak_memories=tuple(round(peak) for peak in costs(5e7 * more, 0.001)),
        **{"kernels": 3, "graph_breaks": 0, **counts},
    )


def write(store: Store, records: Sequence[Record], night: int, **environment: Any) -> None:
    """A run of one night, in which these cases were timed."""
    run_id = fabricate.write_run(
        store, records, run_id=f"night-{night:02}", arguments=ARGUMENTS,
        environment={"torch": "2.13.0", "cpu_model": "AMD EPYC", **environment},
    )  # fmt: skip
    started = {"started_at": f"2026-03-{night:02}T03:00:00+00:00"}
    with store.transaction() as transaction:
        transaction.connection.execute(sa.update(RUNS).where(RUNS.c.run_id == run_id).values(started))


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "nights.db", create=True) as opened:
        yield opened


def changes_of(
    store: Store,
    made: Callable[[random.Random, int], Measurements],
    *,
    nights: int = 12,
    environment: Callable[[int], dict[str, Any]] = lambda night: {},
) -> list[LastingChange]:
    draw = random.Random(0)
    for night in range(1, nights + 1):
        record = replace(fabricate.record(CASE), measurements=made(draw, night))
        write(store, [record], night, **environment(night))
    return lasting_changes(case_history(store, CASE.case_id))


@pytest.mark.parametrize(
    ("planted", "what", "before", "after"),
    [
        ({"slower": 1.1}, "speed", 0.5, 0.55),
        ({"longer": 1.5}, "compile time", 1.2, 1.8),
        ({"more": 1.2}, "peak memory", 5e7, 6e7),
        ({"graph_breaks": 1}, "graph breaks", 0, 1),
        ({"recompiles": 2}, "recompiles", 0, 2),
        ({"kernels": 4}, "kernels", 3, 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lasting_change_is_told_with_the_run_since_which_it_is_there(
    store: Store, planted: dict[str, Any], what: str, before: float, after: float
) -> None:
    def torch(night: int) -> dict[str, Any]:
        return {"torch": "2.13.0" if night < 9 else "2.14.0"}

    (change,) = changes_of(
        store, lambda draw, night: measured(draw, **(planted if night >= 9 else {})), environment=torch
    )
    assert (change.what, change.is_worse) == (what, True)
    assert (change.last_run.run_id, change.first_run.run_id) == ("night-08", "night-09")
    assert (change.before, change.after) == (pytest.approx(before, rel=0.03), pytest.approx(after, rel=0.03))
    assert change.changes == (("torch", "2.13.0", "2.14.0"),)


def test_what_did_not_change_for_good_is_not_told(store: Store) -> None:
    def odd(draw: random.Random, night: int) -> Measurements:
        return measured(draw, slower=1.3 if night == 6 else 1.0, graph_breaks=int(night == 6))

    assert changes_of(store, odd) == []


def test_a_repaired_case_has_two_changes_and_is_not_slower_since(store: Store) -> None:
    found = changes_of(store, lambda draw, night: measured(draw, slower=1.2 if 5 <= night < 9 else 1.0))
    assert [(one.first_run.run_id, one.is_worse) for one in found] == [("night-05", True), ("night-09", False)]
    assert slower_since(store, store.run("night-02"), store.run("night-12")) == set()
    assert slower_since(store, store.run("night-02"), store.run("night-08")) == {CASE.case_id}
    assert slower_since(store, store.run("night-06"), store.run("night-08")) == set()


def test_the_same_generated_code_is_no_slower(store: Store) -> None:
    assert changes_of(store, lambda draw, night: measured(draw, slower=1.2 if night >= 7 else 1.0, code="same")) == []


def test_times_of_another_machine_are_not_compared_and_counts_are(store: Store) -> None:
    found = changes_of(
        store,
        lambda draw, night: measured(draw, slower=1.4 if night >= 7 else 1.0, kernels=3 + (night >= 7)),
        environment=lambda night: {"cpu_model": "old" if night < 7 else "new"},
    )
    assert [(one.what, one.first_run.run_id) for one in found] == [("kernels", "night-07")]
    assert ("machine", "old", "new") in found[0].changes


def test_a_count_of_the_newest_run_alone_is_told_unless_it_varies(store: Store) -> None:
    (change,) = changes_of(store, lambda draw, night: measured(draw, kernels=3 + (night == 12)))
    assert (change.what, change.first_run.run_id) == ("kernels", "night-12")


def test_a_count_that_goes_to_and_fro_has_no_lasting_change(store: Store) -> None:
    assert changes_of(store, lambda draw, night: measured(draw, kernels=3 + night % 2)) == []


def test_failing_runs_and_short_histories_have_none(store: Store) -> None:
    draw = random.Random(0)
    for night in range(1, 5):
        record = replace(fabricate.record(CASE), measurements=measured(draw, slower=1.0 + (night > 2)))
        write(store, [record], night)
    assert lasting_changes(case_history(store, CASE.case_id)) == []
    write(store, [fabricate.record(CASE, Status.FAIL_ACCURACY)], 5)
    assert lasting_changes(case_history(store, CASE.case_id)) == []
    assert lasting_changes([]) == []
    assert slower_since(store, store.run("night-01"), store.run("night-05")) == set()


@pytest.mark.parametrize("runs", [5, 6, 8])
def test_a_steady_case_alone_has_hardly_ever_a_lasting_change(runs: int) -> None:
    draw = random.Random(runs)
    found = 0
    for _ in range(200):
        past = [PastRun.of({CASE.case_id: measured(draw)}) for _ in range(runs)]
        found += bool(lasting_steps(past, {CASE.case_id: ""}, ["speed"])[CASE.case_id])
    assert found <= 2


def test_the_command_prints_it_and_has_it_in_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    changes_of(store, lambda draw, night: measured(draw, slower=1.2 if night >= 9 else 1.0))
    db = str(store.location)
    commands.history(CASE.case_id, db=db)
    told = " ".join(capsys.readouterr().out.split())
    assert "lasting changes (1)" in told
    assert "night-09" in told.partition("lasting changes")[2]
    assert "% slower" in told
    commands.history(CASE.case_id, db=db, as_json=True)
    ((change,),) = [case["lasting_changes"] for case in json.loads(capsys.readouterr().out)]
    assert (change["what"], change["is_worse"], change["since"]) == ("speed", True, "night-09")
    assert change["last_before"] == "night-08"


def test_histories_are_written_for_otava(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes_of(store, lambda draw, night: measured(draw), nights=3)
    write(store, [fabricate.record(CASE, Status.FAIL_ACCURACY)], 4)
    commands.history("*", db=str(store.location), otava=tmp_path / "otava")
    assert "3 histories" in capsys.readouterr().out
    tests = json.loads((tmp_path / "otava" / "otava.yaml").read_text())["tests"]
    assert set(tests) == {f"{CASE.case_id} {what}" for what in ("speed", "compile time", "peak memory")}
    speed = Path(tests[f"{CASE.case_id} speed"]["file"]).read_text().splitlines()
    assert [line.split(",")[1] for line in speed] == ["run", "night-01", "night-02", "night-03"]
    assert [float(line.split(",")[3]) for line in speed[1:]] == [0.5] * 3


@pytest.mark.parametrize("days", [7, 2])
def test_the_weekly_report_names_the_run_since_which_a_case_is_slower(
    store: Store, days: int, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    cases = [fabricate.case(f"op{number}/float32/forward/0") for number in range(20)]
    for night in range(1, 15):
        records = []
        for number, case in enumerate(cases):
            planted = {"slower": 1.15, "graph_breaks": 1} if number == 3 and night >= 10 else {}
            records.append(replace(fabricate.record(case), measurements=measured(draw, **planted)))
        write(store, records, night)
    commands.triage(db=str(store.location), days=days)
    text = capsys.readouterr().out
    if days == 2:
        assert "slower" not in text.partition("\n\n")[2].replace("Nothing new, fixed, flaky or slower.", "")
        return
    slower = text.partition("### slower (1)")[2].partition("###")[0]
    assert "| case | what | since run |" in slower
    assert f"{cases[3].case_id} |" in slower
    assert "night-10 (2026-03-10)" in slower
    assert "night-10 (2026-03-10)" in text.partition("### more graph breaks (1)")[2]
