"""The pool's settings, and the part of them that is sent to the starter and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oracle.isolate.after_hang import AfterHang
from oracle.isolate.task import Environment

StartMethod: TypeAlias = Literal["forkserver", "spawn"]

MIB = 1 << 20
GIB = 1 << 30

# Numeric libraries read the size of their thread pools from these when they are imported.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Limits that a worker enforces itself."""

    max_tasks: int
    """A worker is replaced after this many tasks."""
    max_growth_bytes: int
    """A worker is replaced if its memory between tasks has grown by more since its start, as with a subject that leaks."""
    address_space_margin_bytes: int | None
    """Backstop: address space may grow by the task's memory limit plus this; None: no such limit (CUDA maps far more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The validated arguments of `Pool`, and fixed limits."""

    workers: int
    preload: tuple[str, ...]
    start_method: StartMethod
    threads_per_worker: int | None
    environment: Mapping[str, str]
    start_timeout_s: float
    worker: WorkerSettings
    after_hang: AfterHang | None = None
    log_limit_bytes: int = 4 * MIB
    """A worker's output file is cut to its tail when it exceeds this size."""
    max_waiting_results: int = 1024
    max_waiting_bytes: int = 256 * MIB
    """No task is started while this many results wait for a slow consumer."""
    max_starters: int = 4
    """If there are more starters (one for each environment), those without workers are stopped."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}, but should be at least 1")
        if self.start_method not in ("forkserver", "spawn"):
            raise ValueError(f"start_method={self.start_method!r}, but should be 'forkserver' or 'spawn'")
        if self.threads_per_worker is not None and self.threads_per_worker < 1:
            raise ValueError(f"threads_per_worker={self.threads_per_worker}, but should be at least 1 or None")
        if self.worker.max_tasks < 1:
            raise ValueError(f"max_tasks_per_worker={self.worker.max_tasks}, but should be at least 1")

    def process_environment(self, inherited: Mapping[str, str], extra: Environment) -> dict[str, str]:
        """The environment of workers for tasks with `extra` variables. Later sources override earlier ones."""
        wanted = {**self.environment, **dict(extra)}
        # Setting one of them sets all: torch, for one, prefers MKL_NUM_THREADS to OMP_NUM_THREADS.
        threads = wanted.get("OMP_NUM_THREADS", self.threads_per_worker)
        limits = {} if threads is None else {name: str(threads) for name in THREAD_VARIABLES}
        return {**inherited, **limits, **wanted}
