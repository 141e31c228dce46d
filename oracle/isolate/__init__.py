"""A pool of isolated, long-lived worker processes: one task's segfault, hang or runaway memory ends that task only.

The road of a task: `Pool.run` plans it (`schedule.py`), the supervisor thread (`supervisor.py`) sends it to a worker
(`worker_handle.py`), the worker process (`worker.py`) calls the function, and its end (`task.py`) comes back through
`delivery.py`. `task_clock.py` says what a running task is charged for. Workers are forked or spawned by a starter
process, one per distinct environment (`starter.py`).

This package imports no torch; workers preload it.
"""

from oracle.isolate.errors import (
    InternalError,
    IsolateError,
    PoolBusyError,
    PoolStoppedError,
    TaskNotSendableError,
    WorkerStartError,
)
from oracle.isolate.pool import Pool
from oracle.isolate.task import JSON, START_UP, Completed, Died, End, Failed, OutOfMemory, Task, TaskResult, TimedOut

__all__ = [
    "JSON",
    "START_UP",
    "Completed",
    "Died",
    "End",
    "Failed",
    "InternalError",
    "IsolateError",
    "OutOfMemory",
    "Pool",
    "PoolBusyError",
    "PoolStoppedError",
    "Task",
    "TaskNotSendableError",
    "TaskResult",
    "TimedOut",
    "WorkerStartError",
]
