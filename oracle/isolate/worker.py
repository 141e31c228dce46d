"""The worker process: receives tasks, calls their functions under limits, and sends results."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from oracle.isolate.channel import MAX_MESSAGE_BYTES, ChildChannel, encode
from oracle.isolate.process_tree import IS_LINUX, Memory, memory_of
from oracle.isolate.settings import WorkerSettings
from oracle.isolate.ticket import TicketHolder
from oracle.isolate.worker_streams import StandardStreams, move_out_of_the_way

# The parent sends this signal to a worker over its time limit. faulthandler handles it in C, even while another thread or a C
# function holds the GIL.
DUMP_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Connections, files and limits of one worker, passed to a spawned worker as JSON."""

    channel_fd: int
    tickets_fd: int
    trace_path: str
    preload: tuple[str, ...]
    settings: WorkerSettings

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerPlace:
        fields = json.loads(text)
        return cls(
            **{**fields, "preload": tuple(fields["preload"]), "settings": WorkerSettings(**fields["settings"])},
        )


def preload_modules(names: tuple[str, ...]) -> None:
    """Import each module; of "module:function", call the function as well.

    Without garbage collections, which take a sixth of the time that torch and its compilers take to import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            module, _, function = name.partition(":")
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
    finally:
        if was_enabled:
            gc.enable()


def spawned_main(place_json: str) -> NoReturn:
    """Entry point of a worker in a fresh interpreter."""
    run_worker(WorkerPlace.from_json(place_json))


def run_worker(place: WorkerPlace) -> NoReturn:
    """Serve tasks until the parent is gone or this process must be replaced. Never returns, and runs no atexit handlers."""
    channel = ChildChannel(socket.socket(fileno=move_out_of_the_way(place.channel_fd)))
    tickets_fd = move_out_of_the_way(place.tickets_fd)
    streams = StandardStreams()
    faulthandler.enable(2)
    try:
        preload_modules(place.preload)
    except BaseException:
        channel.send(encode({"say": "start_failed", "traceback": traceback.format_exc()}))
        os._exit(1)
    try:
        _Worker(channel, TicketHolder(tickets_fd), streams, place, own_fds=(channel.fileno(), tickets_fd)).serve()
    except BrokenPipeError:  # the parent is gone
        os._exit(0)
    except BaseException:  # the process edge: the error is logged, and the parent gets the exit code
        traceback.print_exc()
        streams.flush()
        os._exit(70)


class _Worker:
    def __init__(
        self,
        channel: ChildChannel,
        tickets: TicketHolder,
        streams: StandardStreams,
        place: WorkerPlace,
        *,
        own_fds: tuple[int, ...],
    ) -> None:
        self._channel = channel
        self._tickets = tickets
        self._streams = streams
        self._settings = place.settings
        self._pid = os.getpid()
        self._sequence = -1  # of the running task
        self._functions: dict[str, Callable[..., Any]] = {}
        self._address_space = resource.getrlimit(resource.RLIMIT_AS)
        self._trace = open(place.trace_path, "ab", buffering=0)  # noqa: SIM115 - open as long as the process lives
        faulthandler.register(DUMP_SIGNAL, file=self._trace, all_threads=True, chain=False)
        # A child forked by a task must not hold the connections, by which the parent detects the end of this process.
        os.register_at_fork(after_in_child=lambda: _close_all(own_fds))
        gc.collect()
        gc.freeze()  # loaded modules stay, so garbage collections need not traverse them

    def serve(self) -> NoReturn:
        memory = _own_memory()
        start_bytes = memory.private_bytes
        tasks_done = 0
        self._channel.send(encode({"say": "ready", "pid": self._pid}))
        while (message := self._channel.receive()) is not None:
            self._sequence = message["sequence"]
            if not self._tickets.may_start(self._sequence):
                continue
            answer = self._run(message["task"], memory)
            tasks_done += 1
            memory = _own_memory()
            is_last = (
                answer.get("replace_worker", False)
                or answer["say"] == "out_of_memory"
                or tasks_done >= self._settings.max_tasks
                or memory.private_bytes - start_bytes > self._settings.max_growth_bytes
            )
            self._answer(answer, is_last=is_last)
            if is_last:
                break
        os._exit(0)

    def _run(self, task: dict[str, Any], memory: Memory) -> dict[str, Any]:
        faulthandler.enable(self._trace, all_threads=True)  # for each task, since subjects disable it
        self._channel.send(
            encode(
                {
                    "say": "started",
                    "sequence": self._sequence,
                    "private_bytes": memory.private_bytes,
                    "output_size": self._streams.output_size(),
                    "trace_size": os.fstat(self._trace.fileno()).st_size,
                }
            )
        )
        self._limit_address_space(task["memory_bytes"], memory)
        began = time.monotonic()
        try:
            value = self._function(task["function"])(task["payload"], self._progress_of(self._sequence))
            answer = _completed(task["function"], value, wall_s=time.monotonic() - began)
        except MemoryError:
            self._lift_address_space()
            growth = max(0, _own_memory().private_bytes - memory.private_bytes)
            answer = {"say": "out_of_memory", "bytes": growth, "traceback": traceback.format_exc()}
        except BaseException:
            self._lift_address_space()
            answer = {"say": "failed", "error": traceback.format_exc()}
        if os.getpid() != self._pid:  # the task forked, and this is the child returning
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this task would kill the next one
        self._lift_address_space()
        self._streams.flush()
        self._streams.restore()
        return answer

    def _answer(self, answer: dict[str, Any], *, is_last: bool) -> None:
        tail = {"sequence": self._sequence, "is_last": is_last}
        try:
            frame = encode({**answer, **tail})
            if len(frame) > MAX_MESSAGE_BYTES:
                raise ValueError(f"result has {len(frame)} bytes, but should have at most {MAX_MESSAGE_BYTES}")
        except (TypeError, ValueError, RecursionError):
            error = "the returned dict cannot be sent as JSON\n" + traceback.format_exc()
            frame = encode({"say": "failed", "error": error, **tail})
        # From here on, progress calls of threads that the task left running are ignored.
        self._sequence = -1
        self._channel.send(frame)

    def _progress_of(self, sequence: int) -> Callable[[str], None]:
        def progress(stage: str) -> None:
            if self._sequence == sequence and os.getpid() == self._pid:
                self._channel.send(encode({"say": "stage", "sequence": sequence, "stage": str(stage)}))

        return progress

    def _function(self, path: str) -> Callable[..., Any]:
        if path not in self._functions:
            module, _, name = path.partition(":")
            self._functions[path] = getattr(importlib.import_module(module), name)
        return self._functions[path]

    def _limit_address_space(self, memory_bytes: int, memory: Memory) -> None:
        margin = self._settings.address_space_margin_bytes
        if margin is None or not IS_LINUX:
            return
        wanted = memory.virtual_bytes + memory_bytes + margin
        soft, hard = self._address_space
        bounds = [wanted, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))

    def _lift_address_space(self) -> None:
        if resource.getrlimit(resource.RLIMIT_AS) != self._address_space:
            resource.setrlimit(resource.RLIMIT_AS, self._address_space)


def _completed(function: str, value: Any, *, wall_s: float) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {"say": "failed", "error": f"{function} returned {type(value).__name__}, but should return dict"}
    replace_worker = bool(value.pop("replace_worker", False))
    return {"say": "completed", "value": value, "wall_s": wall_s, "replace_worker": replace_worker}


def _own_memory() -> Memory:
    memory = memory_of(os.getpid())
    assert memory is not None
    return memory


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # closed already
            os.close(fd)
