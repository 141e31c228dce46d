"""Tasks for workers, and the closed union of the ways in which a task ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None
Environment: TypeAlias = tuple[tuple[str, str], ...]

START_UP = "start-up"
"""The stage in which a task imports and warms up what later tasks of the process use too. Not charged to its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call of `function(payload, progress)` in a worker, under limits.

    `progress(stage)` names the current stage; a task that dies or hangs is reported with its last stage. The stage START_UP has
    its own time limit, and the task's clock restarts after it. The function returns a dict of JSON values (NaN and infinities
    encoded as strings). A key `"replace_worker": True` is removed, and the process is not used for another task.
    """

    key: str
    """Unique within a run."""
    function: str
    """`package.module:function`, imported in the worker."""
    payload: Mapping[str, JSON]
    group: str
    """Tasks of one group run in order on one worker, which may cache for it, until an idle worker takes some of them."""
    timeout_s: float
    """Seconds, as `TaskClock` charges them: time in which other processes keep the task from running is not its own."""
    memory_bytes: int
    """Limit of the growth of resident memory (anonymous and shared) of the worker and its descendants during the task."""
    environment: Environment = ()
    """Extra variables, set before preloading; each distinct environment has its own workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The function returned."""

    value: dict[str, JSON]
    wall_s: float
    replace_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task function raised, or returned something that cannot be sent: an error of ours, with its traceback."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The process ended during the task: by a signal, with an exit code, or (both None) by closing its connection."""

    signal: int | None
    exit_code: int | None
    stage: str
    traceback: str
    """Python stack of every thread, if there was time to write it."""
    stderr: str
    """Tail of what the task wrote to stdout and stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The task was still running at its time limit, at the position in `traceback`."""

    seconds: float
    """Seconds charged by `TaskClock`."""
    stage: str
    traceback: str
    stderr: str
    wall_s: float | None = None
    cpu_s: float | None = None
    """CPU time of the task and its children in that time; None if the system does not count it."""
    reset_failure: str = ""
    """The failure of the command that the pool runs after a hang (`after_hang.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The task exceeded its memory limit, or an allocation far over it was refused.

    `bytes` is the largest growth that was measured, which is small if a single giant allocation was refused.
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
    """Number of tasks that the worker had run before. With 0, no earlier task can have caused the end."""
