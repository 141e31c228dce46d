"""The supervisor thread: handles messages and exits of workers, enforces time and memory limits, and assigns tasks.

It is a thread, and not part of the consumer's loop, so that limits are enforced and workers stay busy while the consumer handles
a result. Only this thread uses the state below; other threads send it commands through its mailbox.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oracle.isolate import kept_starters
from oracle.isolate.after_hang import AfterHang, RunningCommand
from oracle.isolate.assignment import Assignment
from oracle.isolate.channel import ChannelCorruptError, ParentChannel
from oracle.isolate.delivery import Delivery
from oracle.isolate.errors import InternalError, WorkerStartError
from oracle.isolate.fleet import Fleet
from oracle.isolate.mailbox import Mailbox
from oracle.isolate.process_tree import thread_times
from oracle.isolate.schedule import Schedule
from oracle.isolate.settings import PoolSettings
from oracle.isolate.starter_handle import StarterHandle
from oracle.isolate.task import Completed, End, Environment, Failed, OutOfMemory, TaskResult, TimedOut
from oracle.isolate.worker_handle import SentTask, UnexpectedMessageError, WorkerHandle, WorkerState

POLL_S = 0.05
"""Interval at which memory and CPU time of a running task's processes are read."""
_DUMP_S = 1.0
"""Time for a worker over its time limit to write its stack."""
_EXIT_NOTICE_S = 2.0
"""Time within which the exit of a worker must be reported after it closed its connection or announced its exit."""
_ABANDON_S = 10.0
"""A killed process that still exists after this time is stuck in the kernel; another worker gets its slot."""


@dataclass(slots=True)
class Run:
    """One call of `Pool.run`."""

    schedule: Schedule
    delivery: Delivery
    unended: int
    """Number of tasks whose end has not been delivered."""


@dataclass(slots=True)
class _Reset:
    """A command that follows a worker killed for its time limit, and the result that is delivered after it."""

    settings: AfterHang
    run: Run
    result: TaskResult
    end: TimedOut
    running: RunningCommand | None = None  # None until the worker is gone, and commands before it have ended


class Supervisor(threading.Thread):
    """The supervisor of one pool, from its construction until `stop`."""

    def __init__(self, *, settings: PoolSettings, directory: Path) -> None:
        super().__init__(name="isolate-supervisor", daemon=True)
        self._settings = settings
        self._directory = directory
        self._fleet = Fleet(settings=settings, directory=directory)
        self._run: Run | None = None
        self._stop_at: float | None = None
        self._next_poll = 0.0
        self._hung: dict[int, _Reset] = {}  # by worker; those that are not gone yet
        self._resets: deque[_Reset] = deque()  # one runs at a time
        self._assignment = Assignment(fleet=self._fleet, start_worker=self._start_worker)
        self._selector = selectors.DefaultSelector()
        self._writing: set[int] = set()
        self.mailbox = Mailbox()
        self._selector.register(self.mailbox.wake_fd, selectors.EVENT_READ, lambda _: self.mailbox.drain_wake())

    # Commands, run in this thread.

    def begin(self, run: Run) -> None:
        self._run = run
        if run.unended == 0:
            self._end_run()

    def cancel(self, run: Run) -> None:
        """End a run whose consumer is gone: kill the workers with its tasks and keep idle ones."""
        if self._run is not run:
            return
        for worker in list(self._fleet.workers.values()):
            if worker.sent:
                worker.sent.clear()
                worker.kill()
        self._end_run()

    def stop(self, grace_s: float) -> None:
        """Start no more tasks; running ones may end within `grace_s`."""
        stop_at = time.monotonic() + grace_s
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        for worker in self._fleet.workers.values():
            worker.withdraw()  # tasks that have not started are not reported to the consumer

    # The loop.

    def run(self) -> None:
        error: Exception | None = None
        try:
            while not self._is_finished():
                self._step()
        except WorkerStartError as start_error:
            error = start_error
        except Exception as bug:
            error = InternalError(f"the supervisor of the worker pool failed: {bug!r}")
            error.__cause__ = bug
        finally:
            self._close(error)

    def _step(self) -> None:
        for key, events in self._selector.select(self._wait_s()):
            key.data(events)
        self.mailbox.run_commands()
        now = time.monotonic()
        for worker in list(self._fleet.workers.values()):
            self._check_clock(worker, now)
        if now >= self._next_poll:
            self._next_poll = now + POLL_S
            for worker in list(self._fleet.workers.values()):
                self._look_at_processes(worker)
        self._reset()
        if self._run is not None and self._stop_at is None and not self._run.delivery.is_full():
            self._assignment.assign(self._run.schedule, may_start=not self._resets and not self._hung)
        for worker in self._fleet.workers.values():
            self._watch_writing(worker)

    def _is_finished(self) -> bool:
        if self._stop_at is None:
            return False
        is_running = any(worker.sent for worker in self._fleet.workers.values())
        return not is_running or time.monotonic() >= self._stop_at

    def _wait_s(self) -> float | None:
        """Seconds until the next time limit; None if only a message can change anything."""
        if self.mailbox.has_commands:
            return 0.0
        workers = self._fleet.workers.values()
        if self._stop_at is None and not self._resets and all(worker.is_idle for worker in workers):
            return None
        now = time.monotonic()
        deadlines = [
            running.clock.due_at
            for worker in workers
            if worker.state is WorkerState.READY and (running := worker.running) and running.clock is not None
        ]
        return min(max(0.001, moment - now) for moment in (self._next_poll, *deadlines, now + POLL_S))

    def _start_worker(self, environment: Environment) -> None:
        try:
            worker, launched = self._fleet.start_worker(environment)
        except OSError as error:  # no memory for a process, no free file descriptor, a full disk
            self._fleet.note_start_failure(environment, f"cannot start a process: {error}")
            return
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda events: self._on_worker(worker, events))
        if launched is not None:
            self._selector.register(launched.channel, selectors.EVENT_READ, lambda _: self._on_starter(launched))
            for surplus in self._fleet.surplus_starters():
                self._unwatch(surplus.channel)
                del self._fleet.starters[surplus.environment]
                kept_starters.retire([surplus])

    # Messages of workers and starters.

    def _on_worker(self, worker: WorkerHandle, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            worker.channel.flush()
        if events & selectors.EVENT_READ:
            self._listen(worker)

    def _listen(self, worker: WorkerHandle, *, everything: bool = False) -> None:
        try:
            for message in worker.channel.receive(everything=everything):
                self._hear(worker, message)
        except (ChannelCorruptError, UnexpectedMessageError, KeyError) as error:
            # Something else than the worker's loop wrote to the connection, which is as good as closed.
            self._lose(worker, f"the worker's connection is corrupt: {error}")
            return
        if worker.channel.is_closed:
            self._unwatch(worker.channel)
            if worker.state in (WorkerState.READY, WorkerState.STARTING):
                worker.enter(WorkerState.LOST)

    def _hear(self, worker: WorkerHandle, message: dict[str, Any]) -> None:
        if worker.state in (WorkerState.KILLED, WorkerState.DUMPING):
            return  # the end of its task is already decided
        match message["say"]:
            case "ready":
                worker.pid = message["pid"]
                worker.enter(WorkerState.READY)
            case "start_failed":
                worker.start_error = message["traceback"]
            case "started":
                worker.on_started(message)
                self._fleet.note_start(worker.starter.environment)
            case "stage":
                worker.on_stage(message)
            case "completed" | "failed" | "out_of_memory":
                self._on_answer(worker, message)
            case other:
                raise UnexpectedMessageError(f"worker {worker.pid} said {other!r}")

    def _on_answer(self, worker: WorkerHandle, message: dict[str, Any]) -> None:
        before = worker.tasks_ended
        sent = worker.on_answer(message)
        end: End
        match message["say"]:
            case "completed":
                end = Completed(
                    value=message["value"], wall_s=message["wall_s"], replace_worker=message["replace_worker"]
                )
            case "failed":
                end = Failed(error=message["error"])
            case _:
                peak = max(message["bytes"], sent.peak_bytes)
                end = OutOfMemory(bytes=peak, stage=sent.stage, traceback=message["traceback"])
        if message["is_last"]:
            worker.enter(WorkerState.LEAVING)
            self._return_tasks(worker)
        self._deliver(worker, sent, end, tasks_before=before, size=message["frame_bytes"])

    def _on_starter(self, starter: StarterHandle) -> None:
        for message in starter.receive():
            worker = self._fleet.workers.get(message.get("worker", -1))
            if message["say"] == "exited" and worker is not None:
                self._on_exit(worker, message["status"])
            elif message["say"] == "not_started" and worker is not None:
                worker.start_error = f"cannot fork: {message['error']}"
                self._on_exit(worker, None)
        if starter.channel.is_closed:
            self._on_starter_end(starter)

    def _on_starter_end(self, starter: StarterHandle) -> None:
        if starter.is_gone:
            return
        self._unwatch(starter.channel)
        del self._fleet.starters[starter.environment]
        orphans = self._fleet.workers_of(starter.environment)
        detail = "".join({worker.start_error or "" for worker in orphans}) + starter.end()
        for worker in orphans:
            if worker.state is WorkerState.STARTING:
                self._remove(worker)  # counts as one failure, not one for each worker that waited for the starter
            else:
                self._on_exit(worker, None, note=detail)
        if any(worker.state is WorkerState.STARTING for worker in orphans):
            self._fleet.note_start_failure(starter.environment, detail)

    def _on_exit(self, worker: WorkerHandle, status: int | None, *, note: str = "") -> None:
        """Handle the exit of a worker, after its last messages."""
        if not worker.channel.is_closed:
            self._listen(worker, everything=True)
        if (running := worker.running) is not None and worker.state is not WorkerState.KILLED:
            end = self._timeout_or_death(worker, running, status, note)
            worker.sent.popleft()
            self._deliver(worker, running, end, tasks_before=worker.tasks_ended)
        was_never_ready = worker.pid == 0
        had_work = bool(worker.sent)
        detail = worker.start_error or f"exit status {status}\n{worker.files.output_tail()}"
        self._remove(worker)
        if was_never_ready or (had_work and not worker.has_started_a_task):
            self._fleet.note_start_failure(worker.starter.environment, detail)

    def _timeout_or_death(self, worker: WorkerHandle, running: SentTask, status: int | None, note: str) -> End:
        if worker.state is WorkerState.DUMPING:
            return worker.end_of_timeout(running)
        return worker.end_of_death(running, status, note=note)

    # Limits.

    def _check_clock(self, worker: WorkerHandle, now: float) -> None:
        in_state_s = now - worker.state_since
        match worker.state:
            case WorkerState.READY:
                if (running := worker.running) is not None and self._is_over(worker, running, now):
                    worker.enter(WorkerState.DUMPING)
                    worker.ask_for_stack()
            case WorkerState.DUMPING:
                size = worker.files.trace_size()
                is_written = size > 0 and size == worker.dump_size
                worker.dump_size = size
                if (is_written and in_state_s >= POLL_S) or in_state_s >= _DUMP_S:
                    running = worker.sent[0]
                    self._end_by_force(worker, running, worker.end_of_timeout(running))
            case WorkerState.STARTING:
                if in_state_s >= self._settings.start_timeout_s:
                    worker.start_error = (
                        f"not ready after start_timeout_s={self._settings.start_timeout_s}\n"
                        + worker.files.output_tail()
                    )
                    if worker.starter.is_ready:
                        worker.kill()
                    else:
                        worker.starter.kill()
                        worker.enter(WorkerState.STARTING)
            case WorkerState.LOST | WorkerState.LEAVING:
                if in_state_s >= _EXIT_NOTICE_S:
                    self._lose(worker, "the worker closed its connection but went on running; it was killed")
            case WorkerState.KILLED:
                if in_state_s >= _ABANDON_S:
                    self._remove(worker)

    def _is_over(self, worker: WorkerHandle, running: SentTask, now: float) -> bool:
        """Whether the task has used up its time, is still running, and its worker can be killed for it."""
        clock = running.clock
        if clock is None or now < clock.due_at:
            return False
        clock.look(thread_times(worker.processes()))
        # The task may be in another stage by now.
        return clock.is_over and self._hold(worker, running) and running.clock is clock

    def _look_at_processes(self, worker: WorkerHandle) -> None:
        """Charge the running task for its time, and end it if it exceeds its memory limit."""
        if worker.state not in (WorkerState.READY, WorkerState.DUMPING) or (running := worker.running) is None:
            return
        worker.files.bound()
        pids = worker.processes()
        if worker.state is WorkerState.READY and running.clock is not None:
            running.clock.look(thread_times(pids))
        if running.memory is None or running.memory.growth(pids) <= running.task.memory_bytes:
            return
        if worker.state is WorkerState.DUMPING:
            self._end_by_force(worker, running, worker.end_of_timeout(running))
        elif worker.state is WorkerState.READY and self._hold(worker, running):
            end = OutOfMemory(bytes=running.peak_bytes, stage=running.stage, traceback="")
            self._end_by_force(worker, running, end)

    def _hold(self, worker: WorkerHandle, running: SentTask) -> bool:
        """Whether the worker is still running this task. It can start no other one then, so that the right task is blamed."""
        if len(worker.sent) > 1:
            withdrawn = worker.withdraw()
            if withdrawn is None:
                return False  # it has started the next task, and its answer is on the way
            if self._run is not None and self._stop_at is None:
                self._run.schedule.put_back(withdrawn)
        self._listen(worker)
        return worker.state is WorkerState.READY and worker.head is running

    def _end_by_force(self, worker: WorkerHandle, running: SentTask, end: End) -> None:
        worker.sent.popleft()
        worker.kill()
        self._deliver(worker, running, end, tasks_before=worker.tasks_ended)

    def _lose(self, worker: WorkerHandle, note: str) -> None:
        """Kill a worker whose connection is lost; its running task dies with it."""
        self._unwatch(worker.channel)
        worker.channel.close()
        running = worker.running
        if running is not None:
            end = self._timeout_or_death(worker, running, None, note)
            self._end_by_force(worker, running, end)
        else:
            worker.kill()
        self._return_tasks(worker)

    # Ends.

    def _deliver(self, worker: WorkerHandle, sent: SentTask, end: End, *, tasks_before: int, size: int = 256) -> None:
        run, settings = self._run, self._settings.after_hang
        if run is None:
            return
        result = TaskResult(task=sent.task, end=end, worker_pid=worker.pid, tasks_before=tasks_before)
        if settings is not None and isinstance(end, TimedOut):
            self._hung[worker.number] = _Reset(settings=settings, run=run, result=result, end=end)
        else:
            self._put(run, result, size)

    def _put(self, run: Run, result: TaskResult, size: int) -> None:
        run.delivery.put(result, size)
        run.unended -= 1
        if run.unended == 0:
            self._end_run()

    def _reset(self) -> None:
        """Run the commands that follow hangs, one after another, and deliver the results that wait for them."""
        while self._resets:
            reset = self._resets[0]
            if reset.running is None:
                case, pid = reset.result.task.key, reset.result.worker_pid
                reset.running = RunningCommand(reset.settings, case=case, pid=pid, inherited=os.environ)
            failure = reset.running.failure()
            if failure is None:
                return
            self._resets.popleft()
            if self._run is reset.run:
                self._put(reset.run, replace(reset.result, end=replace(reset.end, reset_failure=failure)), 256)

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.delivery.close()
            self._run = None

    def _return_tasks(self, worker: WorkerHandle) -> None:
        """Return tasks that were sent and did not start to the schedule, in order, before the rest of their group."""
        run = self._run
        if run is not None:
            run.schedule.release(worker.starter.environment, worker.number)
            for sent in reversed(worker.sent):
                run.schedule.put_back(sent.planned)
        worker.sent.clear()

    def _remove(self, worker: WorkerHandle) -> None:
        self._return_tasks(worker)
        self._unwatch(worker.channel)
        self._writing.discard(worker.number)
        worker.close()
        del self._fleet.workers[worker.number]
        if (reset := self._hung.pop(worker.number, None)) is not None:
            self._resets.append(reset)

    # Files.

    def _watch_writing(self, worker: WorkerHandle) -> None:
        """Watch whether a socket can be written only while there are bytes to write."""
        wants = worker.channel.has_unsent
        if wants == (worker.number in self._writing) or worker.channel.is_closed:
            return
        key = self._selector.get_key(worker.channel)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
        self._selector.modify(worker.channel, events, key.data)
        (self._writing.add if wants else self._writing.discard)(worker.number)

    def _unwatch(self, channel: ParentChannel) -> None:
        with contextlib.suppress(KeyError, ValueError):  # no longer watched, or closed
            self._selector.unregister(channel)

    def _close(self, error: Exception | None) -> None:
        self._selector.close()
        self.mailbox.close()  # runs a `begin` that was just submitted, so that its consumer is told of the end too
        if self._run is not None:
            self._run.delivery.close(error)
            self._run = None
        for reset in self._resets:
            if reset.running is not None:
                reset.running.kill()
        kept_starters.retire(list(self._fleet.starters.values()))
        self._fleet.starters.clear()
        for worker in list(self._fleet.workers.values()):
            worker.close()
        self._fleet.workers.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
