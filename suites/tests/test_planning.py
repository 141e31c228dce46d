"""Planning: shards part the programs, a group whose listing kills its worker is a row, a wrong selection is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from oracle.build import ProgramLoadError, instantiate
from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Died, End, Pool, Task, TaskResult
from oracle.program import Program
from suites.base import Selection
from suites.planning import Shard, make_plan


class StandInPool:
    """Answers planning tasks as a worker would; groups in `deadly` kill it."""

    def __init__(self, groups: dict[str, list[str]], deadly: frozenset[str] = frozenset()) -> None:
        self._groups = groups
        self._deadly = deadly

    def run(self, tasks: Iterable[Task]) -> Iterator[TaskResult]:
        for task in tasks:
            yield TaskResult(task=task, end=self._end(task), worker_pid=1, tasks_before=0)

    def _end(self, task: Task) -> End:
        if task.function.endswith("list_groups"):
            return Completed(value={"groups": list(self._groups)}, wall_s=0.0)
        groups = cast("list[str]", task.payload["groups"])
        if self._deadly & set(groups):
            return Died(signal=11, exit_code=None, stage="listing", traceback="", stderr="")
        return Completed(
            value={"programs": {group: [self._entry(group, name) for name in self._groups[group]] for group in groups}},
            wall_s=0.0,
        )

    def _entry(self, group: str, name: str) -> dict[str, Any]:
        program = Program(name=name, source="def program(): return 1\n").to_json()
        labels = {
            "group": group,
            "dtype": "",
            "direction": "forward",
            "tags": [],
            "timeout_s": None,
            "memory_bytes": None,
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


def test_a_name_listed_twice_is_an_error_of_ours() -> None:
    with pytest.raises(InternalError, match="a/1"):
        plan_of(StandInPool({"a": ["a/1", "a/1"]}))


def test_a_selection_without_groups_or_programs_is_refused() -> None:
    with pytest.raises(UsageError, match="no group"):
        plan_of(StandInPool({}))
    with pytest.raises(UsageError, match="none with a program"):
        plan_of(StandInPool({"a": []}))
