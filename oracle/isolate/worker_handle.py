"""The parent's side of one worker: its tasks, its state, its last message, and its files."""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.isolate.channel import ParentChannel, encode
from oracle.isolate.process_tree import ThreadTimes, TreeMemory, thread_times, tree_of
from oracle.isolate.schedule import PlannedTask
from oracle.isolate.starter_handle import StarterHandle, WorkerRequest
from oracle.isolate.task import START_UP, Died, End, OutOfMemory, Task, TimedOut
from oracle.isolate.task_clock import TaskClock
from oracle.isolate.ticket import TicketOffice
from oracle.isolate.worker import DUMP_SIGNAL

# The running task and one that is queued in the worker's socket, so that the worker never waits for the parent.
QUEUE_DEPTH = 2
START_UP_S = 60.0
"""Time limit of the stage START_UP, unless the task's own is longer."""


class WorkerState(enum.Enum):
    """State of a worker. Every state but READY ends by a message, an exit or a time limit."""

    STARTING = enum.auto()
    READY = enum.auto()
    """Serving tasks, or waiting for one."""
    DUMPING = enum.auto()
    """Over its time limit; writing its Python stack before it is killed."""
    LEAVING = enum.auto()
    """Announced that it exits after its last answer."""
    LOST = enum.auto()
    """Closed its connection; its exit should be reported soon."""
    KILLED = enum.auto()


@dataclass(slots=True)
class SentTask:
    """A task that is queued in a worker's socket or running."""

    sequence: int
    planned: PlannedTask
    stage: str = ""
    clock: TaskClock | None = None
    """The clock of the task, or of its stage START_UP while it is in that; None before it has started."""
    memory: TreeMemory | None = None

    @property
    def task(self) -> Task:
        return self.planned.task

    @property
    def has_started(self) -> bool:
        return self.clock is not None

    @property
    def peak_bytes(self) -> int:
        return 0 if self.memory is None else self.memory.peak_bytes


class WorkerHandle:
    """State of one worker process. The supervisor decides what its messages mean for the run."""

    def __init__(self, *, number: int, starter: StarterHandle, directory: Path, log_limit_bytes: int) -> None:
        self.number = number
        self.starter = starter
        self.state = WorkerState.STARTING
        self.state_since = time.monotonic()
        self.pid = 0
        self.sent: deque[SentTask] = deque()
        self.tasks_ended = 0
        self.has_started_a_task = False
        self.start_error: str | None = None
        self.dump_size = 0
        self.files = WorkerFiles(directory=directory, worker=number, limit_bytes=log_limit_bytes)
        self._next_sequence = 0
        self._tickets = TicketOffice()
        ours, theirs = socket.socketpair()
        self.channel = ParentChannel(ours)
        starter.start(
            WorkerRequest(
                worker=number,
                output_path=self.files.output_path,
                trace_path=self.files.trace_path,
                channel=theirs,
                tickets_fd=self._tickets.read_fd,
            )
        )

    @property
    def head(self) -> SentTask | None:
        return self.sent[0] if self.sent else None

    @property
    def running(self) -> SentTask | None:
        """The task that has started and not ended, as far as is known."""
        return self.sent[0] if self.sent and self.sent[0].has_started else None

    @property
    def is_idle(self) -> bool:
        return self.state is WorkerState.READY and not self.sent

    def enter(self, state: WorkerState) -> None:
        self.state = state
        self.state_since = time.monotonic()

    def send(self, planned: PlannedTask) -> None:
        sequence = self._next_sequence
        self._next_sequence += 1
        self.sent.append(SentTask(sequence, planned))
        self._tickets.issue(sequence)
        self.channel.send(b'{"sequence":%d,"task":%s}' % (sequence, planned.message))

    def withdraw(self) -> PlannedTask | None:
        """Take back the queued task, if the worker has not started it. The task before it must have started."""
        if len(self.sent) == QUEUE_DEPTH and self.sent[0].has_started and self._tickets.withdraw(self.sent[1].sequence):
            return self.sent.pop().planned
        return None

    def on_started(self, message: dict[str, Any]) -> None:
        sent = self._expect(message)
        sent.clock = TaskClock(limit_s=sent.task.timeout_s, times=self._thread_times())
        sent.memory = TreeMemory(pid=self.pid, base_bytes=message["private_bytes"])
        self.files.mark(output_size=message["output_size"], trace_size=message["trace_size"])
        self.has_started_a_task = True

    def on_stage(self, message: dict[str, Any]) -> None:
        sent, stage = self._expect(message), message["stage"]
        if (stage == START_UP) != (sent.stage == START_UP):
            limit_s = max(sent.task.timeout_s, START_UP_S) if stage == START_UP else sent.task.timeout_s
            sent.clock = TaskClock(limit_s=limit_s, times=self._thread_times())
        sent.stage = stage

    def on_answer(self, message: dict[str, Any]) -> SentTask:
        self._expect(message)
        self.tasks_ended += 1
        return self.sent.popleft()

    def ask_for_stack(self) -> None:
        self.dump_size = 0
        self.starter.signal_worker(self.number, DUMP_SIGNAL)

    def kill(self) -> None:
        self.enter(WorkerState.KILLED)
        self.starter.kill_worker(self.number)

    def end_of_timeout(self, sent: SentTask) -> End:
        assert sent.clock is not None
        return TimedOut(
            seconds=sent.clock.charged_s,
            stage=sent.stage,
            traceback=self.files.trace(),
            stderr=self.files.output_tail(),
            wall_s=sent.clock.wall_s,
            cpu_s=sent.clock.cpu_s,
        )

    def end_of_death(self, sent: SentTask, status: int | None, *, note: str = "") -> End:
        """The end of a task whose process ended; `status` is that of `os.waitstatus_to_exitcode`."""
        # The pool did not send SIGKILL: the system kills the largest process if the machine is out of memory.
        if status == -9 and sent.peak_bytes > sent.task.memory_bytes / 2:
            return OutOfMemory(bytes=sent.peak_bytes, stage=sent.stage, traceback="")
        return Died(
            signal=-status if status is not None and status < 0 else None,
            exit_code=status if status is not None and status >= 0 else None,
            stage=sent.stage,
            traceback=self.files.trace() or note,
            stderr=self.files.output_tail(),
        )

    def processes(self) -> list[int]:
        """The worker and its descendants."""
        return tree_of(self.pid)

    def close(self) -> None:
        self.channel.close()
        self._tickets.close()
        self.files.remove()

    def _thread_times(self) -> dict[int, ThreadTimes] | None:
        return thread_times(self.processes())

    def _expect(self, message: dict[str, Any]) -> SentTask:
        if not self.sent or self.sent[0].sequence != message["sequence"]:
            raise UnexpectedMessageError(f"worker {self.pid} said {message['say']} of task {message['sequence']}")
        return self.sent[0]


class UnexpectedMessageError(Exception):
    """A worker answered a task that it was not given, so something else wrote to its connection."""


def message_of(task: Task) -> bytes:
    return encode({"function": task.function, "payload": task.payload, "memory_bytes": task.memory_bytes})


_TAIL_BYTES = 16 << 10
_TRACE_BYTES = 64 << 10


class WorkerFiles:
    """The output of a worker, and the Python stacks that faulthandler wrote.

    Reads the tails written by the running task, after the positions set by `mark` at its start.
    """

    def __init__(self, *, directory: Path, worker: int, limit_bytes: int) -> None:
        self.output_path = directory / f"worker-{worker}.log"
        self.trace_path = directory / f"worker-{worker}.trace"
        self.output_path.touch()
        self.trace_path.touch()
        self._limit_bytes = limit_bytes
        self._output_from = 0
        self._trace_from = 0
        self._kept = b""

    def mark(self, *, output_size: int, trace_size: int) -> None:
        self._output_from = output_size
        self._trace_from = trace_size
        self._kept = b""
        if output_size > self._limit_bytes:
            self._truncate()

    def bound(self) -> None:
        """Empty the output file if it exceeds its limit, and keep its tail. Writers append, so they continue at its start."""
        if _size(self.output_path) > self._limit_bytes:
            self._kept = self._read_output()
            self._truncate()

    def output_tail(self) -> str:
        return self._read_output().decode(errors="replace")

    def trace_size(self) -> int:
        return _size(self.trace_path) - self._trace_from

    def trace(self) -> str:
        return _read(self.trace_path, self._trace_from, _TRACE_BYTES).decode(errors="replace")

    def remove(self) -> None:
        self.output_path.unlink(missing_ok=True)
        self.trace_path.unlink(missing_ok=True)

    def _read_output(self) -> bytes:
        start = max(self._output_from, _size(self.output_path) - _TAIL_BYTES)
        return (self._kept + _read(self.output_path, start, _TAIL_BYTES))[-_TAIL_BYTES:]

    def _truncate(self) -> None:
        self._output_from = 0
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.output_path, 0)


# Another program may clean the temporary directory during a run of many days; then there is nothing to read.


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: Path, start: int, length: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)
    except FileNotFoundError:
        return b""
