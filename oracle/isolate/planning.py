"""Checks the tasks of a run before the first one is sent: what every pool refuses, in one place."""

from __future__ import annotations

from collections.abc import Iterable

from oracle.isolate.errors import PoolBusyError, TaskNotSendableError
from oracle.isolate.schedule import PlannedTask
from oracle.isolate.task import Task
from oracle.isolate.worker_handle import message_of


def plan_run(tasks: Iterable[Task], *, is_busy: bool) -> list[PlannedTask]:
    """All tasks of a run with their messages, in the order given.

    Raises PoolBusyError if an earlier run of the pool is not finished, and TaskNotSendableError for a task that cannot be sent.
    """
    if is_busy:
        raise PoolBusyError("run() was called while an earlier run is not finished; exhaust or close its iterator")
    planned: list[PlannedTask] = []
    keys: set[str] = set()
    for task in tasks:
        if task.key in keys:
            raise TaskNotSendableError(f"task key {task.key!r} is not unique in this run")
        keys.add(task.key)
        if not all(_is_variable(name, value) for name, value in task.environment):
            raise TaskNotSendableError(
                f"task {task.key!r} has environment {task.environment!r}, but no such variable can be"
            )
        try:
            message = message_of(task)
        except (TypeError, ValueError) as error:
            raise TaskNotSendableError(
                f"the payload of task {task.key!r} is not JSON: {error}; encode NaN and infinities as strings"
            ) from error
        planned.append(PlannedTask(task=task, message=message))
    return planned


def _is_variable(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value
