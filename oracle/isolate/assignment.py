"""Who gets the next task, and when a worker is started or given up for another environment."""

from __future__ import annotations

from collections.abc import Callable

from oracle.isolate.fleet import Fleet
from oracle.isolate.schedule import PlannedTask, Schedule
from oracle.isolate.task import Environment
from oracle.isolate.worker_handle import QUEUE_DEPTH, WorkerHandle, WorkerState

_MAKING_ROOM = (WorkerState.KILLED, WorkerState.LEAVING, WorkerState.LOST)


class Assignment:
    """Keeps every worker of a fleet supplied from a schedule."""

    def __init__(self, *, fleet: Fleet, start_worker: Callable[[Environment], None]) -> None:
        self._fleet = fleet
        self._start_worker = start_worker

    def assign(self, schedule: Schedule) -> None:
        # Breadth first: everybody gets something to do before anybody gets something to wait for.
        for depth in range(QUEUE_DEPTH):
            for worker in self._fleet.workers.values():
                if worker.state is WorkerState.READY and len(worker.sent) == depth:
                    planned = schedule.take(worker.starter.environment, worker.number)
                    if planned is None and depth == 0:
                        planned = self._withdraw_for(worker)
                    if planned is not None:
                        worker.send(planned)
        self._start_wanted_workers(schedule)

    def _withdraw_for(self, idle: WorkerHandle) -> PlannedTask | None:
        """A task that waits behind a running one, for a worker with nothing to do."""
        for worker in self._fleet.workers_of(idle.starter.environment):
            if worker.state is WorkerState.READY and (planned := worker.withdraw()) is not None:
                return planned
        return None

    def _start_wanted_workers(self, schedule: Schedule) -> None:
        for environment in schedule.environments():
            workers = self._fleet.workers_of(environment)
            # With an idle worker beside it, a task that seems to wait has been started by now: nobody else is needed.
            is_one_idle = any(worker.state is WorkerState.READY and worker.is_idle for worker in workers)
            queued = 0 if is_one_idle else sum(len(worker.sent) > 1 for worker in workers)
            while schedule.remaining(environment) + queued > self._fleet.starting(environment):
                if not self._fleet.has_slot():
                    self._free_slot(schedule)
                    return
                before = len(self._fleet.workers)
                self._start_worker(environment)
                if len(self._fleet.workers) == before:
                    return  # it failed; once more in the next round

    def _free_slot(self, schedule: Schedule) -> None:
        """Retire an idle worker whose environment has nothing left to do, unless a slot is on its way already."""
        workers = self._fleet.workers.values()
        if any(worker.state in _MAKING_ROOM for worker in workers):
            return
        for worker in workers:
            if worker.is_idle and not schedule.remaining(worker.starter.environment):
                worker.kill()
                return
