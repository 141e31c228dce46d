"""The set of running starters and workers, and the rule for when failures to start become an error."""

from __future__ import annotations

import itertools
from pathlib import Path

from oracle.isolate import kept_starters
from oracle.isolate.errors import WorkerStartError
from oracle.isolate.settings import PoolSettings
from oracle.isolate.starter_handle import StarterHandle
from oracle.isolate.task import Environment
from oracle.isolate.worker_handle import WorkerHandle, WorkerState

_MAX_START_FAILURES = 2


class Fleet:
    """Up to `settings.workers` workers, and a starter for each environment in use."""

    def __init__(self, *, settings: PoolSettings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._numbers = itertools.count()
        self._start_failures: dict[Environment, int] = {}
        self.starters: dict[Environment, StarterHandle] = {}
        self.workers: dict[int, WorkerHandle] = {}

    def has_slot(self) -> bool:
        return len(self.workers) < self._settings.workers

    def workers_of(self, environment: Environment) -> list[WorkerHandle]:
        return [worker for worker in self.workers.values() if worker.starter.environment == environment]

    def starting(self, environment: Environment) -> int:
        return sum(worker.state is WorkerState.STARTING for worker in self.workers_of(environment))

    def start_worker(self, environment: Environment) -> tuple[WorkerHandle, StarterHandle | None]:
        """Start a worker. Returns it, and the starter if this fleet had none for it."""
        launched = None
        if environment not in self.starters:
            launched = kept_starters.obtain(
                number=next(self._numbers),
                environment=environment,
                settings=self._settings,
                directory=self._directory,
            )
            self.starters[environment] = launched
        worker = WorkerHandle(
            number=next(self._numbers),
            starter=self.starters[environment],
            directory=self._directory,
            log_limit_bytes=self._settings.log_limit_bytes,
        )
        self.workers[worker.number] = worker
        return worker, launched

    def surplus_starters(self) -> list[StarterHandle]:
        """The oldest starters without workers, as many as exceed the limit."""
        unused = [starter for environment, starter in self.starters.items() if not self.workers_of(environment)]
        return unused[: max(0, len(self.starters) - self._settings.max_starters)]

    def note_start(self, environment: Environment) -> None:
        """Record that a worker of this environment began a task, and so has started."""
        self._start_failures.pop(environment, None)

    def note_start_failure(self, environment: Environment, detail: str) -> None:
        failures = self._start_failures.get(environment, 0) + 1
        self._start_failures[environment] = failures
        if failures >= _MAX_START_FAILURES:
            self._start_failures.pop(environment)
            raise WorkerStartError(environment=environment, preload=self._settings.preload, detail=detail)
