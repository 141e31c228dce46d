"""The order in which workers get tasks, without any process."""

from __future__ import annotations

import random

import pytest

from oracle.isolate.schedule import PlannedTask, Schedule
from oracle.tests.isolate_tasks import task


def planned(*names: str) -> list[PlannedTask]:
    """'a1' is task 1 of group a."""
    return [PlannedTask(task=task("echo", key=name, group=name[0]), message=b"") for name in names]


def take(schedule: Schedule, worker: int) -> str | None:
    found = schedule.take((), worker)
    return None if found is None else found.task.key


def test_a_worker_stays_with_its_group() -> None:
    schedule = Schedule(planned("a1", "b1", "a2", "b2", "a3"))
    assert [take(schedule, 1), take(schedule, 2), take(schedule, 1), take(schedule, 1)] == ["a1", "b1", "a2", "a3"]
    assert [take(schedule, 1), take(schedule, 1), take(schedule, 2)] == ["b2", None, None]


def test_an_idle_worker_takes_the_second_half_of_the_longest() -> None:
    schedule = Schedule(planned(*[f"a{n}" for n in range(8)]))
    assert take(schedule, 1) == "a0"
    assert [take(schedule, 2) for _ in range(4)] == ["a4", "a5", "a6", "a7"]
    assert [take(schedule, 1) for _ in range(2)] == ["a1", "a2"]
    assert [take(schedule, 2), take(schedule, 1)] == ["a3", None]


def test_a_task_put_back_comes_next() -> None:
    schedule = Schedule(planned("a1", "a2", "a3", "b1"))
    first, second = schedule.take((), 1), schedule.take((), 1)
    assert first is not None
    assert second is not None
    schedule.release((), 1)
    schedule.put_back(second)
    schedule.put_back(first)
    assert [take(schedule, 2) for _ in range(5)] == ["a1", "a2", "a3", "b1", None]


@pytest.mark.parametrize("seed", range(5))
def test_every_task_is_given_once_whatever_workers_do(seed: int) -> None:
    generator = random.Random(seed)
    names = [f"{generator.choice('abcde')}{number}" for number in range(200)]
    schedule = Schedule(planned(*names))
    given: list[str] = []
    while schedule.remaining(()):
        worker = generator.randrange(4)
        found = schedule.take((), worker)
        assert found is not None
        if generator.random() < 0.2:
            if generator.random() < 0.5:
                schedule.release((), worker)
            schedule.put_back(found)
        else:
            given.append(found.task.key)
    assert sorted(given) == sorted(names), f"seed={seed}"
