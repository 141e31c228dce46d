"""Runs a piece of work in a forked process, with what this process has loaded, and returns its answer as JSON.

A crash or a hang of the work ends that process only. For tasks that need a clean process, limits of memory or a queue, there is
the pool (`oracle.isolate.pool`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from oracle.errors import InternalError, UsageError
from oracle.isolate.process_tree import thread_times, tree_of
from oracle.isolate.task_clock import TaskClock

_LOOK_S = 0.05  # interval at which the child's CPU time is read


class ChildDiedError(Exception):
    """The child ended without an answer; the message says how: "signal 11", "exit code 3"."""


class ChildLateError(Exception):
    """The child did not answer in time, and was killed."""


def in_child(work: Callable[[], Any], *, timeout_s: float) -> Any:
    """The JSON that `work()` returns in a forked process. Time is charged as `TaskClock` does.

    Raises ChildDiedError and ChildLateError, the UsageError that the work raises, and InternalError for its other errors.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, there), daemon=False)
    child.start()
    there.close()
    assert child.pid is not None
    clock = TaskClock(limit_s=timeout_s, times=thread_times([child.pid]))
    try:
        while not (has_answered := here.poll(min(_LOOK_S, max(0.0, clock.due_at - time.monotonic())))):
            clock.look(thread_times(tree_of(child.pid)))
            if clock.is_over:
                break
        if not has_answered:
            raise ChildLateError(f"no end within {timeout_s:.0f} s")
        message = json.loads(here.recv_bytes())
    except EOFError:
        child.join(5)
        code = child.exitcode
        raise ChildDiedError(f"signal {-code}" if code is not None and code < 0 else f"exit code {code}") from None
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        here.close()
    if "usage" in message:
        raise UsageError(**message["usage"])
    if "error" in message:
        raise InternalError(f"internal error, please report it with the text below\n{message['error']}")
    return message["answer"]


def _child(work: Callable[[], Any], connection: Connection) -> None:
    try:
        message: dict[str, Any] = {"answer": work()}
    except UsageError as error:
        message = {"usage": {"seen": error.seen, "expected": error.expected, "do": error.do}}
    except Exception:  # at the process edge: sent to the parent, which raises it
        message = {"error": traceback.format_exc()}
    connection.send_bytes(json.dumps(message).encode())
    connection.close()
    os._exit(0)  # no atexit handlers of the parent's libraries in the child
