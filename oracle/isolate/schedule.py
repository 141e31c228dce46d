"""Choose a worker's next task: groups stay together, and idle workers take the second half of the longest one.

A segment is a sequence of tasks of one group. Every group starts as one segment; a worker owns a segment until it is empty. If no
segment is free, a worker splits the longest one and owns its second half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from oracle.isolate.task import Environment, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A task of a run."""

    task: Task
    message: bytes
    """The message that sends the task, without its sequence number."""


@dataclass(slots=True)
class _Segment:
    group: str
    tasks: deque[PlannedTask]


class Schedule:
    """The tasks of a run that are not assigned to a worker."""

    def __init__(self, planned: Iterable[PlannedTask]) -> None:
        groups: dict[Environment, dict[str, _Segment]] = {}
        self._remaining: dict[Environment, int] = {}
        for item in planned:
            environment, group = item.task.environment, item.task.group
            segment = groups.setdefault(environment, {}).setdefault(group, _Segment(group, deque()))
            segment.tasks.append(item)
            self._remaining[environment] = self._remaining.get(environment, 0) + 1
        self._free = {environment: deque(segments.values()) for environment, segments in groups.items()}
        self._owned: dict[Environment, dict[int, _Segment]] = {environment: {} for environment in groups}

    def environments(self) -> list[Environment]:
        """The environments with tasks, in the order of the plan."""
        return list(self._remaining)

    def remaining(self, environment: Environment) -> int:
        return self._remaining.get(environment, 0)

    def take(self, environment: Environment, worker: int) -> PlannedTask | None:
        if not self.remaining(environment):
            return None
        owned = self._owned[environment]
        segment = owned.get(worker)
        if segment is None or not segment.tasks:
            segment = self._next_segment(environment)
            owned[worker] = segment
        self._remaining[environment] -= 1
        return segment.tasks.popleft()

    def put_back(self, planned: PlannedTask) -> None:
        """Return a task that was taken and did not start. It comes before the rest of its group."""
        environment, group = planned.task.environment, planned.task.group
        self._remaining[environment] += 1
        free = self._free[environment]
        if free and free[0].group == group:
            free[0].tasks.appendleft(planned)
        else:
            free.appendleft(_Segment(group, deque([planned])))

    def release(self, environment: Environment, worker: int) -> None:
        """Free the segment of a worker that is gone."""
        segment = self._owned.get(environment, {}).pop(worker, None)
        if segment is not None and segment.tasks:
            self._free[environment].appendleft(segment)

    def _next_segment(self, environment: Environment) -> _Segment:
        if self._free[environment]:
            return self._free[environment].popleft()
        longest = max(self._owned[environment].values(), key=lambda segment: len(segment.tasks))
        stolen: deque[PlannedTask] = deque()
        for _ in range((len(longest.tasks) + 1) // 2):
            stolen.appendleft(longest.tasks.pop())
        return _Segment(longest.group, stolen)
