"""What a worker is asked to do, and the closed union of ways in which that ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None
Environment: TypeAlias = tuple[tuple[str, str], ...]

START_UP = "start-up"
"""The stage in which a task imports and warms up what later tasks of its process find done: not charged to its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call of `function(payload, progress)` in a worker, under limits.

    `progress(stage)` names what the task is doing now; a task that dies or hangs is reported with its last stage.
    The stage START_UP has a time limit of its own, and the clock of the task begins anew when it is over.
    The function returns a dict of JSON values (NaN and infinities encoded as strings). It may hold
    `"replace_worker": True`, which is taken out: the process is not fit for another task.
    """

    key: str
    """Unique within a run."""
    function: str
    """`package.module:function`, imported in the worker."""
    payload: Mapping[str, JSON]
    group: str
    """Tasks of one group run in order on one worker, which may keep caches for it, until another worker is idle."""
    timeout_s: float
    """Seconds, as `TaskClock` charges them: time in which other processes keep the task from running is not its own."""
    memory_bytes: int
    """How much the resident memory (anonymous and shared) of worker and descendants may grow over its size before."""
    environment: Environment = ()
    """Extra variables, set before anything is preloaded; each distinct environment has workers of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The function returned."""

    value: dict[str, JSON]
    wall_s: float
    replace_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task function itself raised, or returned what cannot be sent: an error of ours, with its traceback."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The process ended under the task: by a signal, or by exiting with a code, or (both None) it cut its connection."""

    signal: int | None
    exit_code: int | None
    stage: str
    traceback: str
    """Python stack of every thread, when the signal left time to write it."""
    stderr: str
    """The end of what the task wrote to stdout and stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """Still running at its time limit; `traceback` is where it was."""

    seconds: float
    """What was charged, as `TaskClock` says."""
    stage: str
    traceback: str
    stderr: str
    wall_s: float | None = None
    cpu_s: float | None = None
    """CPU time of the task and its children in that time; None where the system does not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Over its memory limit, or refused an allocation that would have been far over it.

    `bytes` is the largest growth that was seen: small when one giant allocation was refused.
    """

    bytes: int
    stage: str
    traceback: str


End: TypeAlias = Completed | Failed | Died | TimedOut | OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How one task ended, and on which worker."""

    task: Task
    end: End
    worker_pid: int
    tasks_before: int
    """How many tasks this worker had run before: 0 means that nothing an earlier task left behind can be to blame."""
