"""Workers are started where work waits for one, and given up only where none is left."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from oracle.isolate.assignment import Assignment
from oracle.isolate.worker_handle import WorkerState

ENVIRONMENT = ("threads", "1")


class _Worker:
    """Ready, with so many tasks sent, of which those behind the first may have been started already."""

    def __init__(self, sent: int, *, can_withdraw: bool) -> None:
        self.state = WorkerState.READY
        self.sent = deque(range(sent))
        self.number = id(self)
        self.starter = SimpleNamespace(environment=ENVIRONMENT)
        self.can_withdraw = can_withdraw
        self.is_killed = False

    @property
    def is_idle(self) -> bool:
        return not self.sent

    def withdraw(self) -> Any:
        return self.sent.pop() if self.can_withdraw and len(self.sent) > 1 else None

    def send(self, planned: Any) -> None:
        self.sent.append(planned)

    def kill(self) -> None:
        self.is_killed = True


def _assign(workers: list[_Worker], *, has_slot: bool) -> list[Any]:
    """The environments that a worker was started for, at the end of a run: nothing is left to be taken."""
    started: list[Any] = []
    fleet: Any = SimpleNamespace(
        workers=dict(enumerate(workers)),
        workers_of=lambda environment: workers,
        starting=lambda environment: len(started),
        has_slot=lambda: has_slot,
    )

    def start(environment: Any) -> None:
        started.append(environment)
        fleet.workers[len(fleet.workers)] = _Worker(0, can_withdraw=False)

    schedule: Any = SimpleNamespace(
        environments=lambda: [ENVIRONMENT], remaining=lambda environment: 0, take=lambda environment, number: None
    )
    Assignment(fleet=fleet, start_worker=start).assign(schedule)
    return started


def test_an_idle_worker_is_kept_when_the_last_task_can_no_longer_be_taken_over() -> None:
    for has_slot in (False, True):
        idle, busy = _Worker(0, can_withdraw=False), _Worker(2, can_withdraw=False)
        assert _assign([idle, busy], has_slot=has_slot) == []
        assert not idle.is_killed


def test_a_task_that_waits_goes_to_the_idle_worker() -> None:
    idle, busy = _Worker(0, can_withdraw=False), _Worker(2, can_withdraw=True)
    assert _assign([idle, busy], has_slot=True) == []
    assert (len(idle.sent), len(busy.sent)) == (1, 1)


def test_a_task_that_waits_with_nobody_idle_gets_a_worker_where_there_is_room() -> None:
    assert _assign([_Worker(2, can_withdraw=False)], has_slot=True) == [ENVIRONMENT]
