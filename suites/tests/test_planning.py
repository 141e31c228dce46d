"""Planning: shards part the programs, a group whose listing kills its worker is a row, a wrong selection is refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import pytest

from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Died, End, Pool, Task, TaskResult
from oracle.program import Program
from oracle.program.build import ProgramLoadError, instantiate
from suites.base import Selection
from suites.commands import list_
from suites.planning import PARTS, Order, Shard, list_groups, list_part, make_plan, make_plans
from suites.registry import load_suite


class StandInPool:
    """Answers planning tasks as a worker would; groups in `deadly` kill it."""

    def __init__(
        self,
        groups: dict[str, list[str]],
        deadly: frozenset[str] = frozenset(),
        subjects: Mapping[str, list[str]] = MappingProxyType({}),
    ) -> None:
        self._groups = groups
        self._deadly = deadly
        self._subjects = subjects

    def run(self, tasks: Iterable[Task]) -> Iterator[TaskResult]:
        for task in tasks:
            yield TaskResult(task=task, end=self._end(task), worker_pid=1, tasks_before=0)

    def _end(self, task: Task) -> End:
        all_groups = list(self._groups)
        if task.function.endswith("list_groups"):
            return Completed(value={"groups": all_groups}, wall_s=0.0)
        if task.function.endswith("list_part"):
            part = cast("int", task.payload["part"])
            groups = all_groups[part * len(all_groups) // PARTS : (part + 1) * len(all_groups) // PARTS]
        else:
            groups = cast("list[str]", task.payload["groups"])
        if self._deadly & set(groups):
            return Died(signal=11, exit_code=None, stage="listing", traceback="", stderr="")
        programs = {group: [self._entry(group, name) for name in self._groups[group]] for group in groups}
        return Completed(value={"groups": all_groups, "programs": programs}, wall_s=0.0)

    def _entry(self, group: str, name: str) -> dict[str, Any]:
        program = Program(name=name, source="def program(): return 1\n").to_json()
        labels = {
            "group": group,
            "dtype": "",
            "direction": "forward",
            "tags": [],
            "timeout_s": None,
            "memory_bytes": None,
            "subjects": self._subjects.get(name, []),
        }
        return {"program": program, **labels}


def plan_of(pool: StandInPool, **options: Any) -> Any:
    return make_plan("features", Selection(), subjects=["eager", "dynamo"], pool=cast("Pool", pool), **options)


def test_every_program_is_planned_on_every_subject_in_order() -> None:
    plan = plan_of(StandInPool({"a": ["a/1", "a/2"], "b": ["b/1"]}))
    assert [case.case_id for case in plan.cases] == [
        f"features/{name}@{subject}" for name in ("a/1", "a/2", "b/1") for subject in ("eager", "dynamo")
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_part_the_programs_and_keep_subjects_together(count: int) -> None:
    pool = StandInPool({f"g{i}": [f"g{i}/{j}" for j in range(20)] for i in range(5)})
    whole = {case.case_id for case in plan_of(pool).cases}
    shards = [plan_of(pool, shard=Shard(index=i + 1, count=count)).cases for i in range(count)]
    assert sum(map(len, shards)) == len(whole)
    assert {case.case_id for shard in shards for case in shard} == whole
    for shard in shards:
        assert all(sum(other.name == case.name for other in shard) == 2 for case in shard)


def test_a_group_that_kills_its_worker_is_a_row_and_its_neighbours_are_planned() -> None:
    groups = {f"g{i}": [f"g{i}/1"] for i in range(40)}
    plan = plan_of(StandInPool(groups, deadly=frozenset({"g7"})))
    names = {case.name for case in plan.cases}
    assert names == {f"g{i}/1" for i in range(40) if i != 7} | {"g7/unplannable"}
    (case,) = [case for case in plan.cases if case.name == "g7/unplannable" and case.subject == "eager"]
    with pytest.raises(ProgramLoadError, match="Died"):
        instantiate(Program.from_json(case.program))


def test_groups_are_planned_also_where_every_worker_died_that_could_have_named_them() -> None:
    plan = plan_of(StandInPool({"a": ["a/1"]}, deadly=frozenset({"a"})))
    assert [case.name for case in plan.cases] == ["a/unplannable", "a/unplannable"]


@pytest.mark.parametrize(
    ("are_own", "subjects"), [(True, ["dynamo"]), (False, ["eager", "dynamo"])], ids=["none named", "named"]
)
def test_a_program_says_which_of_the_suites_subjects_it_is_for_and_not_which_of_the_users(
    are_own: bool, subjects: list[str]
) -> None:
    pool = StandInPool({"a": ["a/1", "a/2"]}, subjects={"a/1": ["dynamo"]})
    order = Order(suite="features", selection=Selection(), subjects=("eager", "dynamo"), are_own=are_own)
    plan = make_plans([order], pool=cast("Pool", pool))
    assert [case.subject for case in plan.cases if case.name == "a/1"] == subjects
    assert [case.subject for case in plan.cases if case.name == "a/2"] == ["eager", "dynamo"]


def test_of_several_suites_one_without_a_program_is_left_out() -> None:
    class OnlyModels(StandInPool):
        def run(self, tasks: Iterable[Task]) -> Iterator[TaskResult]:
            for result in super().run(tasks):
                if result.task.payload["suite"] == "models":
                    yield result
                else:
                    empty = Completed(value={"groups": [], "programs": {}}, wall_s=0.0)
                    yield TaskResult(task=result.task, end=empty, worker_pid=1, tasks_before=0)

    orders = [Order(suite=name, selection=Selection(), subjects=("eager",)) for name in ("features", "models")]
    plan = make_plans(orders, pool=cast("Pool", OnlyModels({"a": ["a/1"]})))
    assert [case.case_id for case in plan.cases] == ["models/a/1@eager"]


def test_progress_tells_parts_and_programs() -> None:
    told: list[tuple[int, int, int, str]] = []
    order = Order(suite="features", selection=Selection(), subjects=("eager",))
    pool = StandInPool({"a": ["a/1", "a/2"], "b": ["b/1"]})
    make_plans([order], pool=cast("Pool", pool), on_part=lambda *so_far: told.append(so_far))
    assert [done for done, *_ in told] == list(range(1, PARTS + 1))
    assert told[-1] == (PARTS, PARTS, 3, "features")


class Slices:
    """Stands in for `Pool.run` of a pool that never gets to the second half of its tasks before it is closed."""

    def __init__(self, results: list[TaskResult]) -> None:
        self._results = iter(results)
        self._is_closed = False

    def __iter__(self) -> Iterator[TaskResult]:
        yield from self._results
        while not self._is_closed:
            time.sleep(0.01)

    def close(self) -> None:
        self._is_closed = True


def test_a_deadline_while_planning_is_told_with_what_to_do() -> None:
    class Slow(StandInPool):
        def run(self, tasks: Iterable[Task]) -> Any:
            return Slices(list(super().run(list(tasks)[: PARTS // 2])))

    order = Order(suite="features", selection=Selection(), subjects=("eager",))
    with pytest.raises(UsageError, match="--time") as raised:
        make_plans([order], pool=cast("Pool", Slow({"a": ["a/1"]})), deadline=time.monotonic() + 0.05)
    assert "nothing has run" in raised.value.seen


SELECTIONS = {
    "opinfo": Selection(match=("a*", "nn.functional.s*"), max_samples=2, directions=("forward", "backward")),
    "models": Selection(match=("t*",)),
    "features": Selection(),
    "regressions": Selection(),
    "exports": Selection(tags=("inside",)),
}


def test_workers_in_one_pass_plan_what_each_suite_lists_in_its_order() -> None:
    """The same ids, order, labels and programs as a plain loop in one process gives."""
    expected = [
        (suite, found.group, found.dtype, found.direction, found.tags, found.program.to_json())
        for suite, selection in SELECTIONS.items()
        for group in load_suite(suite).groups(selection)
        for found in load_suite(suite).programs(selection, group)
    ]
    orders = [Order(suite=suite, selection=selection, subjects=("eager",)) for suite, selection in SELECTIONS.items()]
    with Pool(workers=2, preload=("torch", "oracle.case", "suites.opinfo.suite")) as pool:
        plan = make_plans(orders, pool=pool)
    assert len(plan.cases) > 500
    assert [
        (case.suite, case.group, case.dtype, case.direction, case.tags, case.program) for case in plan.cases
    ] == expected
    assert [case.case_id for case in plan.cases] == [
        f"{suite}/{program['name']}@eager" for suite, *_, program in expected
    ]


def test_a_name_listed_twice_is_an_error_of_ours() -> None:
    with pytest.raises(InternalError, match="a/1"):
        plan_of(StandInPool({"a": ["a/1", "a/1"]}))


def test_a_misspelt_group_is_told_with_one_that_is_like_it() -> None:
    class Pool(StandInPool):
        def _end(self, task: Task) -> End:
            return Completed(value=list_part(task.payload, lambda stage: None), wall_s=0.0)

    selection = Selection(match=("clsoure_tensor",))
    with pytest.raises(UsageError, match=r"did you mean closure_tensor\? `torch-oracle list features`"):
        make_plan("features", selection, subjects=["eager"], pool=cast("Any", Pool({})))


def test_a_selection_without_groups_or_programs_is_refused() -> None:
    with pytest.raises(UsageError, match="no group"):
        plan_of(StandInPool({}))
    with pytest.raises(UsageError, match="none with a program"):
        plan_of(StandInPool({"a": []}))


def test_list_tells_a_misspelt_word_and_a_suite_that_needs_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Here:
        """Runs the task of `list` in this process."""

        def __init__(self, **options: Any) -> None: ...
        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None: ...
        def run(self, tasks: list[Task]) -> list[TaskResult]:
            end = Completed(value=list_groups(tasks[0].payload, lambda stage: None), wall_s=0.0)
            return [TaskResult(task=tasks[0], end=end, worker_pid=1, tasks_before=0)]

    monkeypatch.setattr("suites.commands.Pool", Here)
    with pytest.raises(UsageError, match="did you mean subjects"):
        list_("subjcts")
    with pytest.raises(UsageError, match="--recording FILE"):
        list_("recorded")
    list_("features", match=["clsoure_tensor"])
    assert (
        "no group of suite 'features' matches clsoure_tensor; did you mean closure_tensor?" in capsys.readouterr().err
    )
