"""Decide which worker gets the next task, and when workers are started or replaced for another environment."""

from __future__ import annotations

from collections.abc import Callable

from oracle.isolate.fleet import Fleet
from oracle.isolate.schedule import PlannedTask, Schedule
from oracle.isolate.task import Environment
from oracle.isolate.worker_handle import QUEUE_DEPTH, WorkerHandle, WorkerState

_MAKING_ROOM = (WorkerState.KILLED, WorkerState.LEAVING, WorkerState.LOST)


class Assignment:
    """Gives tasks of a schedule to the workers of a fleet."""

    def __init__(self, *, fleet: Fleet, start_worker: Callable[[Environment], None]) -> None:
        self._fleet = fleet
        self._start_worker = start_worker

    def assign(self, schedule: Schedule, *, may_start: bool = True) -> None:
        """Send tasks to workers that are ready, and start the workers that are wanted if they may start now."""
        # Breadth first: every worker gets a task to run before any worker gets a second one to queue.
        for depth in range(QUEUE_DEPTH):
            for worker in self._fleet.workers.values():
                if worker.state is WorkerState.READY and len(worker.sent) == depth:
                    planned = schedule.take(worker.starter.environment, worker.number)
                    if planned is None and depth == 0:
                        planned = self._withdraw_for(worker)
                    if planned is not None:
                        worker.send(planned)
        if may_start:
            self._start_wanted_workers(schedule)

    def _withdraw_for(self, idle: WorkerHandle) -> PlannedTask | None:
        """Take back a task that is queued behind a running one, for an idle worker."""
        for worker in self._fleet.workers_of(idle.starter.environment):
            if worker.state is WorkerState.READY and (planned := worker.withdraw()) is not None:
                return planned
        return None

    def _start_wanted_workers(self, schedule: Schedule) -> None:
        for environment in schedule.environments():
            workers = self._fleet.workers_of(environment)
            # If a worker is idle, tasks that seem to be queued have been started by now, and no other worker is needed.
            is_one_idle = any(worker.state is WorkerState.READY and worker.is_idle for worker in workers)
            queued = 0 if is_one_idle else sum(len(worker.sent) > 1 for worker in workers)
            while schedule.remaining(environment) + queued > self._fleet.starting(environment):
                if not self._fleet.has_slot():
                    self._free_slot(schedule)
                    return
                before = len(self._fleet.workers)
                self._start_worker(environment)
                if len(self._fleet.workers) == before:
                    return  # it failed; try again in the next round

    def _free_slot(self, schedule: Schedule) -> None:
        """Retire an idle worker whose environment has no tasks left, unless a slot is about to become free."""
        workers = self._fleet.workers.values()
        if any(worker.state in _MAKING_ROOM for worker in workers):
            return
        for worker in workers:
            if worker.is_idle and not schedule.remaining(worker.starter.environment):
                worker.kill()
                return
