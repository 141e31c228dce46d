"""The history of a case over runs, and the list of runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.verdict import Status
from results import commands
from results.history import case_history, case_ids, find_break, find_flakiness, flaky_cases, run_summaries
from results.statistics import proportion_interval
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


def runs_of(store: Store, ends: str, torch: str, *, first: int = 10) -> None:
    """Write one run for each letter, all with one version of torch: the case f(ails), p(asses) or is s(kipped)."""
    words = {"f": Status.FAIL_ACCURACY, "p": Status.PASS, "s": Status.PASS_DUE_TO_SKIP}
    for number, end in enumerate(ends, first):
        records = [fabricate.record(FIRST, words[end])]
        fabricate.write_run(store, records, run_id=f"run-{number}", environment=environment(torch))


@pytest.fixture
def empty(tmp_path: Path):
    with Store.open(tmp_path / "empty.db", create=True) as opened:
        yield opened


def test_a_case_broke_in_the_first_bad_run_after_the_last_good_one(empty: Store):
    runs_of(empty, "fp", "2.12.0")
    assert find_break(case_history(empty, FIRST.case_id)) is None
    runs_of(empty, "sff", "2.13.0", first=20)
    broke = find_break(case_history(empty, FIRST.case_id))
    assert broke is not None
    assert broke.last_good is not None
    assert (broke.last_good.facts.run_id, broke.first_bad.facts.run_id) == ("run-11", "run-21")
    assert broke.changes == (("torch", "2.12.0", "2.13.0"),)


def test_a_case_that_always_failed_has_no_last_good_run(empty: Store):
    runs_of(empty, "ff", "2.13.0")
    broke = find_break(case_history(empty, FIRST.case_id))
    assert broke is not None
    assert (broke.last_good, broke.first_bad.facts.run_id) == (None, "run-10")


@pytest.mark.parametrize(
    ("ends", "is_flaky"), [("pppp", False), ("ppff", False), ("fffp", False), ("pfp", True), ("pfspf", True)]
)
def test_a_verdict_that_goes_to_and_fro_without_a_change_is_flaky(empty: Store, ends: str, is_flaky: bool):
    runs_of(empty, ends, "2.13.0")
    assert (find_flakiness(case_history(empty, FIRST.case_id)) is not None) == is_flaky


def test_a_verdict_that_changes_with_the_version_is_not_flaky(empty: Store):
    for number, end in enumerate("pfpf"):
        runs_of(empty, end, f"2.{number}", first=number)
    assert find_flakiness(case_history(empty, FIRST.case_id)) is None
    assert flaky_cases(empty) == []


def runs_of_versions(store: Store, ends: str, versions: Sequence[str], label: str = "") -> None:
    """A run for each letter, as `runs_of`, with a version of the subject each; "-" for none."""
    words = {"f": Status.FAIL_ACCURACY, "p": Status.PASS}
    for number, (end, version) in enumerate(zip(ends, versions, strict=True), 1):
        tested = {"subjects": {FIRST.subject: version}} if version != "-" else {}
        tested |= {"label": label} if label and number == len(ends) else {}
        records = [fabricate.record(FIRST, words[end])]
        fabricate.write_run(store, records, run_id=f"run-{number}", environment={**environment("2.13.0"), **tested})


@pytest.mark.parametrize(
    ("ends", "versions", "is_flaky"),
    [
        ("pfp", "aaa", True),
        ("pfp", "abc", False),  # a bug that came with one version and went with another
        ("pfpf", "abcd", False),
        ("pfpfp", "abcde", True),  # four times: no versions explain that
        ("pfp", "-aa", True),
        ("pfp", "a-b", True),  # as far as is known, the version is the same
        ("pffp", "aabb", True),
        ("pfpp", "aabb", False),
        ("pfpf", "aabb", True),
    ],
)
def test_a_verdict_that_changes_with_the_subjects_version_is_half_as_suspicious(
    empty: Store, ends: str, versions: str, is_flaky: bool
):
    runs_of_versions(empty, ends, versions)
    assert (find_flakiness(case_history(empty, FIRST.case_id)) is not None) == is_flaky
    assert [case_id for case_id, _ in flaky_cases(empty)] == [FIRST.case_id] * is_flaky


def test_a_break_names_the_versions_of_the_subject_and_the_label(empty: Store, capsys: pytest.CaptureFixture[str]):
    versions = ["backend 1.0, commit 0123456789ab", "-", "backend 1.1, commit ba9876543210"]
    runs_of_versions(empty, "ppf", [versions[0], versions[0], versions[2]], label="driver 7")
    broke = find_break(case_history(empty, FIRST.case_id))
    assert broke is not None
    assert broke.changes == (("label", "", "driver 7"), (FIRST.subject, versions[0], versions[2]))
    commands.history(FIRST.case_id, db=str(empty.location))
    told = " ".join(capsys.readouterr().out.split())
    assert "inductor backend 1.0, commit 0123456789ab -> backend 1.1, commit ba9876543210" in told


def test_a_version_that_older_runs_do_not_know_is_no_change(empty: Store):
    runs_of_versions(empty, "pf", ["-", "backend 1.1"])
    broke = find_break(case_history(empty, FIRST.case_id))
    assert broke is not None
    assert broke.changes == ()


def test_the_rate_of_failures_has_an_interval_that_holds_it(empty: Store):
    runs_of(empty, "pfpppppfpp", "2.13.0")
    found = find_flakiness(case_history(empty, FIRST.case_id))
    assert found is not None
    assert (found.runs, found.failures, found.switches) == (10, 2, 4)
    assert found.low < 0.2 < found.rate < found.high < 0.55


def test_the_interval_holds_the_probability_as_often_as_it_says():
    draw = random.Random(0)
    for probability in (0.05, 0.3):
        held = 0
        for _ in range(1000):
            low, high = proportion_interval(sum(draw.random() < probability for _ in range(30)), 30)
            held += low <= probability <= high
        assert held >= 920


def test_the_command_tells_when_a_case_broke_and_lists_flaky_ones(empty: Store, capsys: pytest.CaptureFixture[str]):
    db = str(empty.location)
    runs_of(empty, "p", "2.12.0")
    runs_of(empty, "f", "2.13.0", first=20)
    commands.history(FIRST.case_id, db=db)
    told = " ".join(capsys.readouterr().out.split())
    assert "it broke in run run-20" in told
    assert "run run-10" in told
    assert "torch 2.12.0 -> 2.13.0" in told
    runs_of(empty, "pf", "2.13.0", first=30)
    commands.history(None, db=db, flaky=True)
    assert FIRST.case_id in capsys.readouterr().out
    commands.history("*", db=db, as_json=True)
    (case,) = json.loads(capsys.readouterr().out)
    assert (len(case["runs"]), case["flakiness"]["failures"], case["broke"]["first_bad"]) == (4, 2, "run-31")
    for bad in ({"cases": None}, {"cases": "a", "flaky": True}, {"cases": "no/such@case"}):
        with pytest.raises(UsageError):
            commands.history(**{"db": db, "flaky": False, **bad})


@pytest.mark.parametrize(
    "glob",
    ["opinfo/add/0@inductor[mode=max]", "opinfo/add/0@inductor", "opinfo/add/*", "opinfo/[am]*", "*ü*", "opinfo/ü?"],
)
def test_ids_that_a_glob_finds_by_its_beginning_are_those_that_it_matches(empty: Store, glob: str):
    names = ("add/0", "add/1", "add", "adb", "ad\x7f", "mul/0", "ü1", "ü")
    cases = [fabricate.case(name, subject=one) for name in names for one in ("inductor", "inductor[mode=max]")]
    fabricate.write_run(empty, [fabricate.record(case) for case in cases])
    expected = {case.case_id for case in cases if case.case_id == glob or fnmatchcase(case.case_id, glob)}
    assert case_ids(empty, glob) == sorted(expected)
