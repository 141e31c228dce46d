"""A run that ends early has judged an even share of every suite, and what waited longest first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from oracle.records import PlannedCase
from results.queries import last_judged
from results.store import Store
from results.tests import fabricate
from suites.order import running_order


def plan(**groups: int) -> list[PlannedCase]:
    """Suites with so many groups, of three cases each, suite after suite."""
    return [
        fabricate.case(f"{suite}{group}/{number}", suite=suite)
        for suite, count in groups.items()
        for group in range(count)
        for number in range(3)
    ]


def names(cases: list[PlannedCase]) -> list[str]:
    return [case.name for case in cases]


def test_all_suites_advance_alike_and_groups_stay_together() -> None:
    cases = plan(opinfo=100, models=20, exports=4)
    order = running_order(cases)
    assert sorted(names(order)) == sorted(names(cases))
    assert running_order(list(order)) == order  # as a resumed run, with what is left
    groups = [case.group for case in order[::3]]
    assert groups == [case.group for case in order[2::3]]
    for part in (40, 75, 200, 300):
        ran = Counter(case.suite for case in order[:part])
        shares = {suite: ran[suite] / count / 3 for suite, count in (("opinfo", 100), ("models", 20), ("exports", 4))}
        assert max(abs(share - part / len(cases)) for share in shares.values()) <= 0.26  # a group of `exports`
    assert names(running_order(plan(opinfo=3))) == names(plan(opinfo=3))  # one suite keeps its order


def test_a_suite_of_one_group_runs_in_the_shortest_night() -> None:
    cases = plan(opinfo=100, models=20, recorded=1)
    assert [case.suite for case in running_order(cases)[:9:3]] == ["opinfo", "models", "recorded"]


def test_what_was_judged_longest_ago_comes_first_in_its_suite() -> None:
    cases = plan(opinfo=4, models=2)
    judged = {case.case_id: 7 for case in cases if case.group != "opinfo3"}
    judged |= {case.case_id: 5 for case in cases if case.name == "opinfo1/2"}  # one of its three cases
    groups = [case.group for case in running_order(cases, judged) if case.suite == "opinfo"][::3]
    assert groups == ["opinfo3", "opinfo1", "opinfo0", "opinfo2"]


def test_nights_that_are_too_short_reach_all_cases_in_turn(tmp_path: Path) -> None:
    cases = plan(opinfo=10, models=5)
    fits = 12  # cases of 45 in a night
    judged: Counter[str] = Counter()
    with Store.open(tmp_path / "nights.db", create=True) as store:
        for night in range(8):
            run_id = f"night-{night}"
            store.begin_planned(run_id=run_id, environment={}, arguments={}, cases=cases)
            ids = [case.case_id for case in cases]
            ran = running_order(cases, last_judged(store, run_id, ids))[:fits]
            store.append([fabricate.record(case, run_id=run_id) for case in ran])
            store.end_run(run_id, state="interrupted")
            judged.update(case.case_id for case in ran)
            # Resumed, the run goes on with what is left of the same order.
            left = running_order(store.unfinished(run_id), last_judged(store, run_id, ids))
            assert {case.case_id for case in left} == {*ids} - {case.case_id for case in ran}
            if night == 4:  # three groups of `opinfo` and one of `models` a night
                assert len(judged) == len(cases)
    assert max(judged.values()) - min(judged.values()) <= 2


def test_the_last_run_that_judged_a_case_is_asked_of_the_database(tmp_path: Path) -> None:
    first, second, never = plan(opinfo=1)
    with Store.open(tmp_path / "runs.db", create=True) as store:
        fabricate.write_run(store, [fabricate.record(first), fabricate.record(second)], run_id="a", unrecorded=[never])
        fabricate.write_run(store, [fabricate.record(second)], run_id="b", unrecorded=[first, never])
        fabricate.write_run(store, [fabricate.record(replace(first))], run_id="c")
        ids = [case.case_id for case in (first, second, never)]
        assert last_judged(store, "c", ids) == {first.case_id: 1, second.case_id: 2}
        assert last_judged(store, "b", ids) == {first.case_id: 1, second.case_id: 1}
        assert last_judged(store, "a", ids) == {}
