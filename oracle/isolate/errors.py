"""Errors of the worker pool itself. A task that crashes or hangs causes none of these, but an `End` (see `task.py`)."""

from __future__ import annotations


class IsolateError(Exception):
    """Base of the pool's own errors."""


class WorkerStartError(IsolateError):
    """Workers of one environment failed to start twice in a row, so the run cannot continue."""

    def __init__(self, *, environment: tuple[tuple[str, str], ...], preload: tuple[str, ...], detail: str) -> None:
        self.environment = environment
        self.preload = preload
        self.detail = detail
        shown = " ".join(f"{name}={value}" for name, value in environment) or "(none)"
        modules = " ".join(preload) or "(none)"
        super().__init__(
            "worker processes do not start: 2 failures in a row\n"
            f"  preloaded modules: {modules}\n"
            f"  extra environment: {shown}\n"
            "what the last one said:\n"
            + "".join(f"    {line}\n" for line in (detail.strip() or "(nothing)").splitlines())
            + "what to do: import the preloaded modules by hand with this interpreter and this environment; "
            "if they import but slowly, raise start_timeout_s."
        )


class PoolStoppedError(IsolateError):
    """`run` was called on a pool that was stopped or that failed."""


class PoolBusyError(IsolateError):
    """`run` was called while an earlier run of the same pool was not finished."""


class TaskNotSendableError(IsolateError):
    """A task's key is not unique, or its payload is not JSON."""


class InternalError(IsolateError):
    """The supervisor thread failed: a bug of this package, not of a task."""
