"""Measure how much of its time limit a task has used: wall time without waits for a processor that other processes use."""

from __future__ import annotations

import time
from collections.abc import Mapping

from oracle.isolate.process_tree import ThreadTimes

WALL_FACTOR = 10.0
"""A task ends after so many times its limit of wall time, however little of it was charged."""


class TaskClock:
    """The time charged to one task. All time limits use this rule for the task's process tree (the worker and its descendants):

    * while one of its threads runs, or while all of them wait for something else than a processor (a lock, a sleep, a
      file, a connection), wall time is charged, so that a loop and a deadlock both end at the limit;
    * while a thread is ready to run and no thread of the tree has a processor, nothing is charged, since the machine is busy
      with other processes.

    Linux counts for each thread how long it ran and how long it waited in a run queue. The tree was idle for the rest of the
    time. Waits in run queues are subtracted from the charged time, but never more than the tree has been idle so far, since a
    wait is reported when it ends. So, with at most one processor's CPU time:

        min(CPU time, wall time) <= charged <= wall time <= WALL_FACTOR * limit_s

    The last bound ends a task that gets no processor at all. If the system does not count (no Linux, or a kernel without
    schedstat), wall time is charged.
    """

    def __init__(
        self, *, limit_s: float, times: Mapping[int, ThreadTimes] | None = None, now: float | None = None
    ) -> None:
        """`times` are the current times of the tree's threads (`process_tree.thread_times`); `now` is in seconds."""
        self.limit_s = limit_s
        self._began_at = self._seen_at = time.monotonic() if now is None else now
        self._times = None if times is None else dict(times)
        self._ran_s = self._idle_s = self._starved_s = 0.0

    def look(self, times: Mapping[int, ThreadTimes] | None, now: float | None = None) -> None:
        """Account for the threads' times since the last call."""
        now = time.monotonic() if now is None else now
        elapsed_s = max(0.0, now - self._seen_at)
        self._seen_at = now
        if times is None or self._times is None:
            return
        ran_ns = queued_ns = 0
        for thread, (ran, queued) in times.items():
            ran_before, queued_before = self._times.get(thread, (0, 0))
            if ran < ran_before or queued < queued_before:  # the id of an ended thread was reused
                ran_before = queued_before = 0
            ran_ns += ran - ran_before
            queued_ns += queued - queued_before
        self._times.update(times)  # includes threads that are not listed, since a listing may miss a thread once
        self._ran_s += ran_ns / 1e9
        self._idle_s += max(0.0, elapsed_s - ran_ns / 1e9)
        self._starved_s = min(self._starved_s + queued_ns / 1e9, self._idle_s)

    @property
    def wall_s(self) -> float:
        """Wall time up to the last look, as in the properties below."""
        return self._seen_at - self._began_at

    @property
    def cpu_s(self) -> float | None:
        """CPU time of the whole tree; None if the system does not count it."""
        return None if self._times is None else self._ran_s

    @property
    def charged_s(self) -> float:
        return self.wall_s - self._starved_s

    @property
    def is_over(self) -> bool:
        return self.charged_s >= self.limit_s or self.wall_s >= WALL_FACTOR * self.limit_s

    @property
    def due_at(self) -> float:
        """The earliest time at which the limit can be reached, for the next look."""
        by_charge = self._seen_at + (self.limit_s - self.charged_s)
        return min(by_charge, self._began_at + WALL_FACTOR * self.limit_s)
