"""The interface of a pool: `Pool` on this machine, or `oracle.cluster.ClusterPool` on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol

from typing_extensions import Self

from oracle.isolate.task import Task, TaskResult


class TaskResults(Protocol):
    """The ends of one run's tasks, in the order in which they end. Closing it ends running tasks, also from another thread."""

    def __iter__(self) -> Iterator[TaskResult]: ...
    def __next__(self) -> TaskResult: ...
    def close(self) -> None: ...


class TaskPool(Protocol):
    """Runs tasks, and gives the end of each exactly once."""

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
