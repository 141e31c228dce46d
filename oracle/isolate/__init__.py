"""A pool of isolated, long-lived worker processes: a segfault, hang or runaway memory of a task ends that task only.

`Pool.run` plans a task (`schedule.py`), the supervisor thread (`supervisor.py`) sends it to a worker (`worker_handle.py`), the
worker process (`worker.py`) calls the function, and the result (`task.py`) returns through `delivery.py`. `task_clock.py` decides
how much time a running task is charged for; `after_hang.py` runs a command after a task that did not end. A starter process for
each distinct environment forks or spawns the workers (`starter.py`); `keep_starters` lets pools that follow one another share it.

This package imports no torch; workers preload it.
"""

from oracle.isolate.after_hang import AfterHang
from oracle.isolate.errors import (
    InternalError,
    IsolateError,
    PoolBusyError,
    PoolStoppedError,
    TaskNotSendableError,
    WorkerStartError,
)
from oracle.isolate.kept_starters import keep_starters
from oracle.isolate.planning import plan_run
from oracle.isolate.pool import Pool, TaskPool, TaskResults
from oracle.isolate.task import JSON, START_UP, Completed, Died, End, Failed, OutOfMemory, Task, TaskResult, TimedOut

__all__ = [
    "JSON",
    "START_UP",
    "AfterHang",
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
    "TaskPool",
    "TaskResult",
    "TaskResults",
    "TimedOut",
    "WorkerStartError",
    "keep_starters",
    "plan_run",
]
