"""The default sweep: what runs where the user names nothing, by the rules that each suite states."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from oracle.isolate import Pool
from oracle.records import PlannedCase
from suites.base import Selection
from suites.execution import preload_of
from suites.opinfo.database import ENTRIES
from suites.planning import make_plans
from suites.registry import ALL_SUITES, load_suite
from suites.regressions.suite import first_rung
from suites.request import SweepRequest, make_request
from suites.rungs import LOWER_RUNGS

MOST_CASES = 1500


def request(**options: Any) -> SweepRequest:
    defaults: dict[str, Any] = {
        "suite": None, "subject": None, "subjects_file": None, "match": None, "tag": None, "dtype": None, "direction": None,
        "max_samples": None, "shard": "1/1", "device": "cpu", "time": None, "case_timeout": 120.0, "memory": 6.0,
        "workers": 2, "threads": 1, "speed": False, "speed_budget": 1.0,
    }  # fmt: skip
    return make_request(**{**defaults, **options})


@pytest.fixture(scope="module")
def planned() -> tuple[PlannedCase, ...]:
    with Pool(workers=2, preload=preload_of(request())) as pool:
        return make_plans(request().orders(), pool=pool).cases


def test_every_suite_is_represented_and_there_are_not_too_many_cases(planned: tuple[PlannedCase, ...]) -> None:
    assert {case.suite for case in planned} == set(ALL_SUITES)
    assert len(planned) <= MOST_CASES


def test_every_operator_has_one_program(planned: tuple[PlannedCase, ...]) -> None:
    operators = Counter(ENTRIES[case.group].name for case in planned if case.suite == "opinfo")
    assert set(operators.values()) == {1}
    everything = {ENTRIES[group].name for group in load_suite("opinfo").groups(Selection())}
    assert set(operators) == everything
    assert {case.subject for case in planned if case.suite == "opinfo"} == {"inductor"}


def test_every_regression_runs_once_on_the_rung_it_first_goes_wrong_on(planned: tuple[PlannedCase, ...]) -> None:
    suite = load_suite("regressions")
    names = [
        found.program.name
        for group in suite.groups(Selection(quick=True))
        for found in suite.programs(Selection(quick=True), group)
    ]
    found = {case.name: case.subject for case in planned if case.suite == "regressions"}
    assert found == {name: first_rung(name) for name in names}
    assert sum(case.suite == "regressions" for case in planned) == len(names)
    assert first_rung("197829/shifted_slice_copy") == "inductor"
    assert first_rung("197860/method_code_replaced") == "dynamo"
    assert first_rung("control/reduction_order") == "inductor"


def test_models_and_exports_are_the_quick_ones(planned: tuple[PlannedCase, ...]) -> None:
    for suite in ("models", "exports"):
        tags = [case.tags for case in planned if case.suite == suite]
        assert tags
        assert all("quick" in own for own in tags)


def test_lower_rungs_follow_only_where_the_user_named_no_subject() -> None:
    assert [spec.name for spec in request().lower_rungs] == ["dynamo", "aot_eager", "aot_eager_decomp_partition"]
    assert request(subject="inductor").lower_rungs == ()
    assert request(suite="features").lower_rungs == ()


def test_a_named_subject_runs_every_program_of_the_default_sweep() -> None:
    asked = request(subject="aot_eager")
    assert asked.selection.quick
    assert all(order.subjects == ("aot_eager",) and not order.are_own for order in asked.orders())


def test_a_compiler_that_is_not_torch_s_also_gets_tensors_that_are_not_contiguous() -> None:
    foreign = request(subject="my_package:backend").selection
    assert [foreign.foreign, request(subject="inductor").selection.foreign, request().selection.foreign] == [
        True, False, False,
    ]  # fmt: skip
    assert Selection.from_json(foreign.to_json()) == foreign
    assert "foreign" not in Selection().to_json()  # so that a night's history goes on after an upgrade
    names = [found.program.name for found in load_suite("opinfo").programs(foreign, "cumsum")]
    assert names == ["cumsum/float32/forward/sample-0", "cumsum/float32/forward/noncontiguous-0"]
    assert not request(subject="my_package:backend", suite="opinfo").selection.foreign


@pytest.mark.parametrize(
    "options", [{"suite": "all"}, {"match": ["add"]}, {"tag": ["quick"]}, {"max_samples": 3}], ids=str
)
def test_a_selection_of_the_users_own_is_not_cut(options: dict[str, Any]) -> None:
    asked = request(**options)
    assert not asked.selection.quick
    assert asked.suites == ALL_SUITES
    assert {spec.name for spec in asked.subjects["opinfo"]} == {"aot_eager"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"suite": "all"},
        {"suite": "features,models", "match": ["a*", "b"], "tag": ["guards"], "dtype": "float64"},
        {"match": ["add"], "direction": "backward", "max_samples": 2},
    ],
    ids=str,
)
def test_the_options_of_a_selection_choose_the_same_programs(options: dict[str, Any]) -> None:
    asked = request(**options)
    words = asked.selection_options()
    parsed: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        key = option.removeprefix("--").replace("-", "_")
        if key in ("match", "tag"):
            parsed.setdefault(key, []).append(value)
        else:
            parsed[key] = int(value) if key == "max_samples" else value
    again = request(**parsed)
    assert (again.suites, again.selection) == (asked.suites, asked.selection)


def test_every_subject_of_the_run_is_known_to_it_also_those_of_the_second_step_alone() -> None:
    asked = replace(request(), subjects={})
    assert list(asked.spec_by_name()) == list(LOWER_RUNGS)


def test_a_request_comes_back_from_the_store_as_it_was() -> None:
    asked = request(time="10m")
    assert SweepRequest.from_json(asked.to_json()) == asked
    assert SweepRequest.from_json(asked.to_json()).going_on(time="1h", workers=5).limits.run_s == 3600


def test_export_runs_what_was_reported_for_it_unless_the_user_names_it() -> None:
    suite = load_suite("regressions")
    found = [program for group in suite.groups(Selection()) for program in suite.programs(Selection(), group)]
    for_export = {program.program.name for program in found if not program.subjects}
    assert "139805/export_same_tensor_twice" in for_export
    assert "197860/method_code_replaced" not in for_export
    assert all(
        "export" not in program.subjects and "inductor" in program.subjects for program in found if program.subjects
    )


def test_workers_are_forked_with_the_suites_and_compilers_that_the_sweep_needs() -> None:
    everything = preload_of(request())
    assert {"suites.opinfo.suite", "suites.models.suite", "torch._dynamo"} <= set(everything)
    assert all(find_spec(module) is not None for module in everything)
    small = preload_of(request(suite="features", subject="eager"))
    assert small == ("torch", "oracle.case", "suites.features.suite")
