"""Comparisons: every way one case can differ between two runs, and differences that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.records import Record
from oracle.verdict import Status
from results import render
from results.changes import ChangeKind, RowText, symptom_key
from results.compare import Comparison, compare, compare_runs, tables_of
from results.pairs import read_texts
from results.render import plain
from results.store import RunInfo, Store
from results.tests import fabricate


def run_info(run_id: str, records: list[Record], **changes) -> RunInfo:
    run = RunInfo(
        run_id=run_id,
        state="complete",
        started_at="",
        ended_at="",
        environment=fabricate.ENVIRONMENT,
        arguments=fabricate.ARGUMENTS,
        planned=len(records),
        recorded=sum(record.verdict.status is not Status.MISSING for record in records),
    )
    return replace(run, **changes)


def compared(base: list[Record], head: list[Record], **changes) -> Comparison:
    return compare(base, head, base_run=run_info("base", base), head_run=run_info("head", head, **changes))


def one(status: Status | None, symptom: str | None = None, **timing) -> list[Record]:
    return [] if status is None else [fabricate.record(fabricate.case(), status, symptom=symptom, **timing)]


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (Status.PASS, Status.PASS, ChangeKind.UNCHANGED),
        (Status.PASS, Status.FAIL_ACCURACY, ChangeKind.NEW_FAILURE),
        (Status.PASS, Status.CRASH, ChangeKind.NEW_FAILURE),
        (Status.PASS, Status.TIMEOUT, ChangeKind.NEW_FAILURE),
        (Status.PASS, Status.XPASS, ChangeKind.UNCHANGED),
        (Status.PASS_DUE_TO_SKIP, Status.FAIL_ALIAS, ChangeKind.NEW_FAILURE),
        (Status.KNOWN, Status.FAIL_ALIAS, ChangeKind.NEW_FAILURE),
        (None, Status.OOM, ChangeKind.NEW_FAILURE),
        (Status.MISSING, Status.FAIL_TO_RUN, ChangeKind.NEW_FAILURE),
        (Status.PASS, Status.MISSING, ChangeKind.MISSING_ROW),
        (Status.PASS, None, ChangeKind.MISSING_ROW),
        (Status.CRASH, None, ChangeKind.MISSING_ROW),
        (Status.MISSING, Status.MISSING, ChangeKind.MISSING_ROW),
        (None, Status.MISSING, ChangeKind.MISSING_ROW),
        (Status.PASS, Status.PASS_DUE_TO_SKIP, ChangeKind.NO_LONGER_COMPARED),
        (Status.FAIL_ACCURACY, Status.EAGER_TWO_RUNS_DIFFER, ChangeKind.NO_LONGER_COMPARED),
        (Status.PASS_DUE_TO_SKIP, Status.EAGER_FAIL_TO_RUN, ChangeKind.UNCHANGED),
        (Status.FAIL_ACCURACY, Status.FAIL_ACCURACY, ChangeKind.STILL_FAILING),
        (Status.FAIL_ACCURACY, Status.CRASH, ChangeKind.CHANGED_SYMPTOM),
        (Status.FAIL_ACCURACY, Status.KNOWN, ChangeKind.CHANGED_SYMPTOM),
        (Status.FAIL_ACCURACY, Status.PASS, ChangeKind.FIXED),
        (Status.XPASS, Status.PASS, ChangeKind.UNCHANGED),
        (Status.XPASS, Status.FAIL_ALIAS, ChangeKind.NEW_FAILURE),
        (Status.KNOWN, Status.XPASS, ChangeKind.FIXED),
        (Status.PASS, Status.NOT_RUN, ChangeKind.MISSING_ROW),
        (Status.NOT_RUN, Status.FAIL_TO_RUN, ChangeKind.NEW_FAILURE),
        (Status.NOT_RUN, Status.PASS, ChangeKind.NEW_ROW),
        (Status.KNOWN, Status.PASS, ChangeKind.FIXED),
        (Status.KNOWN, Status.KNOWN, ChangeKind.UNCHANGED),
        (Status.PASS, Status.KNOWN, ChangeKind.CHANGED_SYMPTOM),
        (Status.PASS_DUE_TO_SKIP, Status.PASS, ChangeKind.NEW_ROW),
        (None, Status.PASS, ChangeKind.NEW_ROW),
        (Status.MISSING, Status.PASS, ChangeKind.NEW_ROW),
    ],
)
def test_what_became_of_a_case(base: Status | None, head: Status | None, expected: ChangeKind):
    comparison = compared(one(base), one(head))
    assert {kind.value: int(kind is expected) for kind in ChangeKind} == comparison.totals
    assert comparison.has_regression is expected.is_regression


@pytest.mark.parametrize("base", list(Status), ids=lambda status: status.value)
def test_every_pair_of_statuses_has_one_kind_and_no_new_finding_is_called_clean(base: Status):
    for head in (*Status, None):
        comparison = compared(one(base), one(head))
        assert sum(comparison.totals.values()) == 1
        was_failing = base.is_finding and base is not Status.MISSING
        if (head is None or head.is_finding) and not was_failing:
            assert comparison.has_regression, head


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("call 0: output[0]: 1.5 but should be 1.25e-3", "call 0: output[0]: 1.75 but should be 9.1e-4", True),
        ("at 0x7f00aa", "at 0x7f11bb", True),
        ("RuntimeError in f.py, line 12", "RuntimeError in f.py, line 40", True),
        ("shape is (2, 3), but should be (3,)", "shape is (2, 4), but should be (3,)", False),
        ("call 0: output[0]: values", "call 0: output[1]: values", False),
        ("dtype is float32", "dtype is float16", False),
    ],
)
def test_measured_numbers_do_not_make_a_changed_symptom_and_shapes_do(old: str, new: str, is_same: bool):
    assert (symptom_key(old) == symptom_key(new)) is is_same
    comparison = compared(one(Status.FAIL_ACCURACY, old), one(Status.FAIL_ACCURACY, new))
    kind = ChangeKind.STILL_FAILING if is_same else ChangeKind.CHANGED_SYMPTOM
    assert comparison.totals[kind.value] == 1


def test_a_run_that_died_while_planning_is_a_regression_even_if_its_rows_pass():
    assert compared(one(Status.PASS), one(Status.PASS), state="planning").has_regression


def test_slower_and_faster_are_told_apart_and_sorted_worst_first():
    names = ("same", "slower", "much slower", "faster", "a little slower")
    speedups = (1.5, 1.2, 0.5, 2.0, 1.47)
    base = [fabricate.record(fabricate.case(f"{name}/f"), speedup=1.5) for name in names]
    head = [fabricate.record(fabricate.case(f"{n}/f"), speedup=s) for n, s in zip(names, speedups, strict=True)]
    comparison = compared(base, head)
    assert [change.case_id.split("/")[1] for change in comparison.speed] == ["much slower", "slower", "faster"]
    assert [change.change < 1 for change in comparison.speed] == [True, True, False]
    assert len(comparison.slower) == 2
    assert comparison.timed_in_both == 5
    assert comparison.speed_change == pytest.approx((1 * 0.8 * (1 / 3) * (4 / 3) * 0.98) ** 0.2)
    assert not comparison.has_regression


def test_the_speed_of_failing_rows_is_not_compared():
    comparison = compared(one(Status.FAIL_ACCURACY, speedup=2.0), one(Status.FAIL_ACCURACY, speedup=0.5))
    assert (comparison.speed, comparison.timed_in_both) == ((), 0)


@pytest.mark.parametrize(
    ("old", "new", "is_reported"), [(1.0, 5.0, True), (5.0, 1.0, True), (1.0, 1.3, False), (0.01, 0.05, False)]
)
def test_compile_time_changes_are_reported_when_large_both_ways(old: float, new: float, is_reported: bool):
    comparison = compared(one(Status.PASS, compile_cold_s=old), one(Status.PASS, compile_cold_s=new))
    assert bool(comparison.compile_time) is is_reported


def timed(names: list[str], speedups: list[float], **fields) -> list[Record]:
    """Passing records with these speedups; `fields` are further measurements."""
    records = [fabricate.record(fabricate.case(f"{n}/f"), speedup=s) for n, s in zip(names, speedups, strict=True)]
    return [replace(record, measurements=replace(record.measurements, **fields)) for record in records]


def test_a_case_that_has_always_jumped_about_is_not_called_slower():
    names = ["jumpy", "steady"]
    past = [timed(names, [1.5 * jump, 1.5]) for jump in (1.0, 1.3, 0.9, 1.25, 0.8, 1.1)]
    base, head = timed(names, [1.5, 1.5]), timed(names, [1.2, 1.2])
    told = compare(base, head, base_run=run_info("base", base), head_run=run_info("head", head), history=past)
    assert [change.case_id for change in told.speed] == ["opinfo/steady/f@inductor"]
    assert told.speed_words == {"better": 0, "worse": 1, "same": 0, "not enough data": 1, "run invalid": 0}
    assert len(compared(base, head).speed) == 2  # without history nothing tells them apart


def test_the_same_code_is_not_slower_and_if_all_of_it_is_the_run_is_invalid():
    names = [f"op{i}" for i in range(12)]
    base = [*timed(names, [1.5] * 12, code="same"), *timed(["changed"], [1.5], code="old")]
    one_slow = [*timed(names, [1.0] + [1.5] * 11, code="same"), *timed(["changed"], [1.0], code="new")]
    told = compared(base, one_slow)
    assert [change.case_id for change in told.speed] == ["opinfo/changed/f@inductor"]
    all_slow = [*timed(names, [1.3] * 12, code="same"), *timed(["changed"], [1.0], code="new")]
    told = compared(base, all_slow)
    assert told.speed == ()
    assert "12 untouched cases became worse together" in told.speed_invalid
    assert "Nothing is said about speed" in "".join(map(render.plain, tables_of(told)))


def test_runs_that_measured_no_speed_say_nothing_about_it():
    def text(*, speedup: float | None) -> str:
        base, head = one(Status.PASS, speedup=speedup), one(Status.PASS, speedup=speedup)
        runs = [run_info(name, base, environment={"cpu_model": f"processor of {name}"}) for name in ("base", "head")]
        told = compare(base, head, base_run=runs[0], head_run=runs[1])
        return "".join(map(render.plain, tables_of(told)))

    assert "Nothing is said about speed: base ran on processor of base" in text(speedup=1.5)
    assert "about speed" not in text(speedup=None)


def test_memory_and_counts_that_changed_have_a_table():
    peaks = {"peak_memories": (100_000_000, 101_000_000, 99_000_000)}
    doubled = {"peak_memories": tuple(2 * peak for peak in peaks["peak_memories"])}
    told = compared(timed(["a"], [1.5], graph_breaks=0, **peaks), timed(["a"], [1.5], graph_breaks=2, **doubled))
    assert [(change.what, change.base, change.head, change.verdict.word.value) for change in told.other] == [
        ("graph breaks", 0, 2, "worse"),
        ("peak memory", 100_000_000, 200_000_000, "worse"),
    ]
    assert "memory and counts changed (2)" in "".join(map(render.plain, tables_of(told)))
    assert json.loads(json.dumps(told.to_json(), allow_nan=False))["other"][0]["verdict"]["reason"] == "2, was 0"
    assert not told.has_regression


def test_nothing_is_said_about_speed_between_two_processors():
    cases = [fabricate.case(f"op{number}/0") for number in range(20)]
    base, head = ([fabricate.record(planned, speedup=speedup) for planned in cases] for speedup in (2.0, 1.0))
    old, new = ({**fabricate.ENVIRONMENT, "cpu_model": model} for model in ("one", "another"))
    for environment, count in ((old, 20), (new, 0)):
        comparison = compare(
            base,
            head,
            base_run=run_info("base", base, environment=old),
            head_run=run_info("head", head, environment=environment),
        )
        assert len(comparison.slower) == count
        assert comparison.speed_words["run invalid"] == 20 - count
    assert comparison.speed_invalid == "base ran on one, head on another: measure both on one machine"


def test_environment_changes_are_named_key_by_key():
    base, head = one(Status.PASS), one(Status.PASS)
    comparison = compared(base, head, environment={**fabricate.ENVIRONMENT, "torch": "2.14", "cpu": {"cores": 2}})
    assert comparison.environment == (("torch", "2.13.0+cpu", "2.14"), ("cpu.cores", "-", "2"))


def test_subjects_at_another_version_and_another_label_are_named():
    base, head = one(Status.PASS), one(Status.PASS)
    old = {"subjects": {"mine:f": "mine 1.0, commit 0123", "gone": "x", "same": "y"}}
    new = {"subjects": {"mine:f": "mine 1.0, commit 4567", "new": "z", "same": "y"}, "label": "driver 7"}
    comparison = compare(
        base,
        head,
        base_run=run_info("base", base, environment={**fabricate.ENVIRONMENT, **old}),
        head_run=run_info("head", head, environment={**fabricate.ENVIRONMENT, **new}),
    )
    changed = (("label", "", "driver 7"), ("mine:f", "mine 1.0, commit 0123", "mine 1.0, commit 4567"))
    assert comparison.versions == changed
    assert [one["what"] for one in comparison.to_json()["versions_changed"]] == ["label", "mine:f"]
    titles = {table.title: table for table in tables_of(comparison)}
    table = titles["subjects at another version (2)"]
    assert table.rows == (
        ("(label of the run)", "-", "driver 7"),
        ("mine:f", "mine 1.0, commit 0123", "mine 1.0, commit 4567"),
    )
    assert not any(title.startswith("environment") for title in titles)  # which would say it again
    assert compared(base, head, environment=fabricate.ENVIRONMENT).versions == ()


def test_rendered_as_text_markdown_and_json_it_names_what_changed():
    base = [*one(Status.PASS, speedup=2.0), fabricate.record(fabricate.case("gone/f"))]
    head = one(Status.FAIL_ALIAS, "output[0]: shares | storage with <x>")
    comparison = compared(base, head)
    tables = tables_of(comparison)
    text = "".join(map(render.plain, tables))
    assert "opinfo/gone/f@inductor" in text
    assert "not planned in head" in text
    assert r"shares \| storage with &lt;x&gt;" in "".join(map(render.markdown, tables))
    data = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert data["has_regression"] is True
    assert {change["kind"] for change in data["cases"]} == {"new failure", "missing row"}


def test_long_lists_are_cut_with_a_note_of_how_many_are_left():
    head = [fabricate.record(fabricate.case(f"op{i}/f"), Status.CRASH) for i in range(7)]
    (failures,) = [table for table in tables_of(compared([], head), limit=3) if table.title.startswith("new failure")]
    assert failures.title == "new failures: 7 in 7 cases"
    assert len(failures.rows) == 3
    assert "and 4 more with 4 cases" in failures.note
    base = [replace(fabricate.record(fabricate.case(f"op{i}/f")), run_id="base") for i in range(7)]
    (missing,) = [table for table in tables_of(compared(base, []), limit=3) if table.title == "missing row (7)"]
    assert (len(missing.rows), missing.note) == (3, "4 more (--all)")


def test_new_failures_are_one_line_for_each_bug_and_case_by_case_when_all_is_asked_for():
    cases = [
        fabricate.case(f"add/float32/forward/sample-{i}", subject=s) for i in range(9) for s in ("dynamo", "inductor")
    ]
    old, new = cases[0], cases[1:]
    base = [fabricate.record(old, Status.FAIL_GRAD), *map(fabricate.record, new)]
    symptoms = [f"call 0: output[{i}] is {i}.5, but should be 1.0 (fp64 1.0): error 1" for i in range(len(new))]
    head = [fabricate.record(old, Status.FAIL_GRAD)]
    head += [fabricate.record(c, Status.FAIL_ACCURACY, symptom=s) for c, s in zip(new, symptoms, strict=True)]
    comparison = compared(base, head)
    assert [(group.cases, group.subjects) for group in comparison.new_failures] == [(17, ("dynamo", "inductor"))]
    titles = [table.title for table in tables_of(comparison)]
    assert titles[:2] == ["comparison", "new failures: 1 in 17 cases"]
    assert "new failure (17)" not in titles
    assert "new failure (17)" in [table.title for table in tables_of(comparison, limit=None)]
    (group,) = json.loads(json.dumps(comparison.to_json()))["new_failures"]
    assert (group["what"], group["cases"], len(group["case_ids"])) == ("add", 17, 17)


def test_a_comparison_of_databases_tells_changed_programs_and_subjects(tmp_path: Path):
    same, changed = fabricate.case("add/0"), fabricate.case("mul/0")
    redefined = replace(changed, program={**changed.program, "source": "def program(x):\n    return x * 2\n"})
    other = fabricate.case("add/0", subject="aot_eager")
    with Store.open(tmp_path / "runs.db", create=True) as store:
        for run_id, cases in (("run-1", [same, changed]), ("run-2", [same, redefined, other])):
            store.begin_planned(run_id=run_id, environment={}, arguments={}, cases=cases)
            store.append([fabricate.record(case, run_id=run_id) for case in cases])
            store.end_run(run_id, state="complete")
        comparison = compare_runs(store, store, base_run=store.run("run-1"), head_run=store.run("run-2"))
        assert list(comparison.definitions) == [changed.case_id]
    assert comparison.subjects == ((), ("aot_eager",))
    text = "".join(plain(table) for table in tables_of(comparison))
    assert "program changed" in text
    assert "subjects of one run only" in text
    assert not comparison.has_regression


def test_a_failure_that_did_not_repeat_is_marked_as_gate_and_show_mark_it():
    once = fabricate.record(fabricate.case("once/f"), Status.FAIL_ACCURACY)
    always = fabricate.record(fabricate.case("always/f"), Status.FAIL_ACCURACY)
    head = [
        replace(once, verdict=replace(once.verdict, reruns=("pass", "fail_accuracy"))),
        replace(always, verdict=replace(always.verdict, reruns=("fail_accuracy", "fail_accuracy"))),
    ]
    comparison = compared([replace(record, verdict=fabricate.verdict()) for record in head], head)
    told = {
        change["case_id"]: (change["head_frequency"], change["is_flaky"]) for change in comparison.to_json()["cases"]
    }
    assert told == {once.case_id: ("in 2 of 3 runs", True), always.case_id: ("in 3 of 3 runs", False)}
    (table,) = [table for table in tables_of(comparison) if table.title.startswith("did not fail each time")]
    assert table.rows == ((once.case_id, "new failure", "fail_accuracy", "2 of 3 runs"),)


# ----------------------------------------------------------------------------------------------------------- in memory


def test_of_a_run_in_which_all_fails_only_the_texts_that_are_shown_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    count, limit = 120, 50
    cases = [fabricate.case(f"op/float32/{i}") for i in range(count)]
    read: list[int] = []

    def counted(store: Store, run: RunInfo, ordinals: Sequence[int]) -> dict[int, RowText]:
        read.append(len(ordinals))
        return read_texts(store, run, ordinals)

    monkeypatch.setattr("results.compare.read_texts", counted)
    with Store.open(tmp_path / "runs.db", create=True) as store:
        for number in (1, 2):
            # Odd cases fail differently in each run, even ones alike but for a number.
            symptoms = [f"call 0: shape {number * (i % 2)} is {i / number}" for i in range(count)]
            records = [fabricate.record(c, Status.CRASH, symptom=s) for c, s in zip(cases, symptoms, strict=True)]
            fabricate.write_run(store, records, run_id=f"run-{number}")
        found = compare_runs(store, store, base_run=store.run("run-1"), head_run=store.run("run-2"))
        assert read == []
        assert (len(found.of_kind(ChangeKind.STILL_FAILING)), len(found.of_kind(ChangeKind.CHANGED_SYMPTOM))) == (
            60,
            60,
        )
        shown = "".join(map(plain, tables_of(found, limit=limit)))
        assert read == [limit] * 4  # two kinds in two runs
        assert shown.count("10 more (--all)") == 2
        assert [change.case_id for change in found.cases] == [case.case_id for case in cases]
        assert found.cases[-1] == found.cases[count - 1] == list(found.cases)[-1]
        assert found.cases[-1].head_symptom == symptoms[-1]
        assert [change.case_id for change in found.cases[2:4]] == [cases[2].case_id, cases[3].case_id]
