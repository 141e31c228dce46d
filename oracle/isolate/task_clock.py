"""How much of its time limit a running task has used: wall time, less what other processes kept it waiting for a processor."""

from __future__ import annotations

import time
from collections.abc import Mapping

from oracle.isolate.process_tree import ThreadTimes

WALL_FACTOR = 10.0
"""A task ends after so many times its limit on the wall, however little of that was charged."""


class TaskClock:
    """The time charged to one task: the one rule for every time limit.

    The rule, for the process tree of the task (the worker and what it started):

    * while one of its threads runs, or while all of them wait for something else than a processor (a lock, a sleep, a
      file, a connection), wall time is charged: a loop and a deadlock both end at the limit;
    * while a thread is ready to run and none of the tree has a processor, nothing is charged: the machine is busy with
      others.

    Linux says of each thread how long it ran and how long it stood in a run queue. From one look to the next, the tree
    was idle for what it did not run. The time in run queues is taken off what is charged, and never more than the tree
    has been idle so far, for a wait is reported when it ends. So, with one processor's worth of CPU time:

        min(CPU time, wall time) <= charged <= wall time <= WALL_FACTOR * limit_s

    The last bound ends a task that gets no processor at all. Where the system does not count (not Linux, or a kernel
    without schedstat), wall time is charged.
    """

    def __init__(
        self, *, limit_s: float, times: Mapping[int, ThreadTimes] | None = None, now: float | None = None
    ) -> None:
        """`times` are those of the tree's threads at this moment, `process_tree.thread_times`; `now` is in seconds."""
        self.limit_s = limit_s
        self._began_at = self._seen_at = time.monotonic() if now is None else now
        self._times = None if times is None else dict(times)
        self._ran_s = self._idle_s = self._starved_s = 0.0

    def look(self, times: Mapping[int, ThreadTimes] | None, now: float | None = None) -> None:
        """Take in how far the threads have come since the last look."""
        now = time.monotonic() if now is None else now
        elapsed_s = max(0.0, now - self._seen_at)
        self._seen_at = now
        if times is None or self._times is None:
            return
        ran_ns = queued_ns = 0
        for thread, (ran, queued) in times.items():
            ran_before, queued_before = self._times.get(thread, (0, 0))
            if ran < ran_before or queued < queued_before:  # the number of a thread that ended, given to another
                ran_before = queued_before = 0
            ran_ns += ran - ran_before
            queued_ns += queued - queued_before
        self._times.update(
            times
        )  # of threads that are not listed too: a listing may miss one that is there again later
        self._ran_s += ran_ns / 1e9
        self._idle_s += max(0.0, elapsed_s - ran_ns / 1e9)
        self._starved_s = min(self._starved_s + queued_ns / 1e9, self._idle_s)

    @property
    def wall_s(self) -> float:
        """Up to the last look, as all below."""
        return self._seen_at - self._began_at

    @property
    def cpu_s(self) -> float | None:
        """CPU time of the whole tree; None where the system does not count."""
        return None if self._times is None else self._ran_s

    @property
    def charged_s(self) -> float:
        return self.wall_s - self._starved_s

    @property
    def is_over(self) -> bool:
        return self.charged_s >= self.limit_s or self.wall_s >= WALL_FACTOR * self.limit_s

    @property
    def due_at(self) -> float:
        """The first moment at which it can be over: look again then."""
        by_charge = self._seen_at + (self.limit_s - self.charged_s)
        return min(by_charge, self._began_at + WALL_FACTOR * self.limit_s)
