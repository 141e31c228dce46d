"""The public interface of the worker pool: run tasks, and get the end of each exactly once."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from typing_extensions import Self

from oracle.isolate.after_hang import AfterHang
from oracle.isolate.delivery import Delivery
from oracle.isolate.errors import PoolStoppedError
from oracle.isolate.planning import plan_run
from oracle.isolate.schedule import Schedule
from oracle.isolate.settings import GIB, PoolSettings, StartMethod, WorkerSettings
from oracle.isolate.supervisor import Run, Supervisor
from oracle.isolate.task import Task, TaskResult

_STOP_S = 30.0


class TaskResults(Protocol):
    """The ends of one run's tasks, in the order in which they end. Closing it ends running tasks, also from another thread."""

    def __iter__(self) -> Iterator[TaskResult]: ...
    def __next__(self) -> TaskResult: ...
    def close(self) -> None: ...


class TaskPool(Protocol):
    """Runs tasks, and gives the end of each exactly once: `Pool` on this machine, `oracle.cluster.ClusterPool` on a cluster."""

    @property
    def places(self) -> int:
        """How many tasks can run at the same time without sharing a machine's worker pool: 1 on one machine."""
        ...

    def run(self, tasks: Iterable[Task]) -> TaskResults: ...
    def stop(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Pool:
    """Isolated long-lived worker processes.

    Example:
        with Pool(workers=2, preload=["torch"]) as pool:
            for result in pool.run(tasks):
                match result.end:
                    case Completed(value=value): ...
                    case Died(signal=signal): ...

    A crash or hang ends its task only. Leaving the `with` block kills running tasks, and so does leaving the loop (`break`,
    Ctrl-C). If the parent is killed, every worker and its children end too.
    """

    def __init__(
        self,
        *,
        workers: int,
        preload: Sequence[str] = (),
        start_method: StartMethod = "forkserver",
        threads_per_worker: int | None = 1,
        environment: Mapping[str, str] | None = None,
        max_tasks_per_worker: int = 2000,
        max_worker_growth_bytes: int = 2 * GIB,
        address_space_margin_bytes: int | None = 2 * GIB,
        start_timeout_s: float = 180.0,
        after_hang: AfterHang | None = None,
    ) -> None:
        """
        preload: modules that workers import before their first task, "module:function" to call a function of one as well;
            not charged to any task.
        start_method: "forkserver" forks workers from a process that has preloaded; "spawn" starts a fresh interpreter for
            each, as CUDA needs if a preloaded module has used the device.
        threads_per_worker: for OpenMP, MKL and OpenBLAS; None does not set the variables.
        environment: variables for all workers; a task's own variables override them.
        max_worker_growth_bytes: a worker whose memory has grown by more since its start is replaced between tasks.
        address_space_margin_bytes: an allocation that exceeds a task's memory limit by more raises MemoryError in the
            worker; None for CUDA, which maps far more than it uses.
        after_hang: a command to run after each worker that was killed for its time limit, before another one starts. The
            task's end is delivered when the command has ended.
        """
        self._settings = PoolSettings(
            workers=workers,
            preload=tuple(preload),
            start_method=start_method,
            threads_per_worker=threads_per_worker,
            environment=dict(environment or {}),
            start_timeout_s=start_timeout_s,
            after_hang=after_hang,
            worker=WorkerSettings(
                max_tasks=max_tasks_per_worker,
                max_growth_bytes=max_worker_growth_bytes,
                address_space_margin_bytes=address_space_margin_bytes,
            ),
        )
        directory = Path(tempfile.mkdtemp(prefix="torch-oracle-workers-"))
        self._supervisor = Supervisor(settings=self._settings, directory=directory)
        # Also runs at interpreter exit, if the pool was not stopped.
        self._finalizer = weakref.finalize(self, _shut_down, self._supervisor, os.getpid())
        self._current: Run | None = None
        self._supervisor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def places(self) -> int:
        """1: a task that is to run alone has this pool to itself."""
        return 1

    def run(self, tasks: Iterable[Task]) -> Results:
        """Yield the end of each task once, in the order in which they end.

        All tasks are read before this returns, since grouping needs the whole plan. Workers continue while the caller handles
        a result.
        """
        planned = plan_run(tasks, is_busy=self._current is not None)
        settings = self._settings
        delivery = Delivery(
            max_results=settings.max_waiting_results,
            max_bytes=settings.max_waiting_bytes,
            on_room=self._supervisor.mailbox.wake,
        )
        run = Run(schedule=Schedule(planned), delivery=delivery, unended=len(planned))
        if not self._supervisor.mailbox.submit(lambda: self._supervisor.begin(run)):
            raise PoolStoppedError("run() was called on a pool that is stopped; make a new one")
        self._current = run
        return Results(run, on_close=self._end_of)

    def stop(self, grace_s: float = 0.0) -> None:
        """End all workers. Tasks that end within `grace_s` are still yielded."""
        self._supervisor.mailbox.submit(lambda: self._supervisor.stop(grace_s))
        self._supervisor.join(timeout=grace_s + _STOP_S)
        self._finalizer()

    def _end_of(self, run: Run) -> None:
        self._supervisor.mailbox.submit(lambda: self._supervisor.cancel(run))
        self._current = None


class Results(Iterator[TaskResult]):
    """The ends of one run's tasks. Closing or dropping it kills running tasks."""

    def __init__(self, run: Run, *, on_close: Callable[[Run], None]) -> None:
        self._delivery = run.delivery
        self._finalizer = weakref.finalize(self, on_close, run)

    def __next__(self) -> TaskResult:
        if not self._finalizer.alive:
            raise StopIteration
        try:
            result = self._delivery.take()
        except BaseException:  # Ctrl-C, or workers that do not start
            self.close()
            raise
        if result is None:
            self.close()
            raise StopIteration
        return result

    def close(self) -> None:
        self._finalizer()


def _shut_down(supervisor: Supervisor, owner_pid: int) -> None:
    if os.getpid() != owner_pid:  # a forked child of the owner does not have the thread
        return
    supervisor.mailbox.submit(lambda: supervisor.stop(0.0))
    if threading.current_thread() is not supervisor:  # a garbage collection in that thread may finalize the pool
        supervisor.join(timeout=_STOP_S)
