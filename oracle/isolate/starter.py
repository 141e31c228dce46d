"""The starter process of one environment: preloads modules, forks workers, reaps and kills them.

`multiprocessing`'s fork server is not used: a process has only one, with one environment, it swallows errors of preloaded
modules, and it imports the user's `__main__` again, which runs a script without a main guard twice. Besides, only the process
that forks a worker can signal it safely, since the pid is not reused before that process reaps it.

The parent's side is `starter_handle.py`. When the parent ends in any way, the starter kills all workers and their descendants,
removes the pool's directory and exits. Workers in turn die with the starter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any, NoReturn

from oracle.isolate.channel import ChildChannel, encode, receive_with_files
from oracle.isolate.process_tree import adopt_orphans, children_of, die_with_parent, prefer_as_memory_victim
from oracle.isolate.settings import StartMethod, WorkerSettings
from oracle.isolate.worker import WorkerPlace, preload_modules, run_worker
from oracle.isolate.worker_streams import redirect_standard_streams

_PARENT_CHECK_S = 1.0
_KILL_ALL_S = 5.0

BOOTSTRAP = (
    "import json, sys; fields = json.loads(sys.argv[1]); sys.path[:] = fields['sys_path']; del sys.argv[1:]; "
    "from oracle.isolate.{module} import {function}; {function}(fields['argument'])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterConfig:
    """Configuration of a starter, passed to it as JSON."""

    control_fd: int
    parent_pid: int
    directory: str
    preload: tuple[str, ...]
    start_method: StartMethod
    worker: WorkerSettings

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StarterConfig:
        fields = json.loads(text)
        return cls(**{**fields, "preload": tuple(fields["preload"]), "worker": WorkerSettings(**fields["worker"])})


def bootstrap_arguments(module: str, function: str, argument: str) -> list[str]:
    """Interpreter arguments that call `oracle.isolate.<module>.<function>(argument)` with this process's `sys.path`."""
    sys_path = [entry or os.getcwd() for entry in sys.path]
    code = BOOTSTRAP.format(module=module, function=function)
    return ["-c", code, json.dumps({"sys_path": sys_path, "argument": argument})]


def starter_main(config_json: str) -> NoReturn:
    """Entry point of the starter's interpreter."""
    config = StarterConfig.from_json(config_json)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles a terminal's Ctrl-C
    control = socket.socket(fileno=config.control_fd)
    control.setblocking(True)
    adopt_orphans()
    faulthandler.enable()
    try:
        if config.start_method == "forkserver":
            preload_modules(config.preload)
    except BaseException:
        ChildChannel(control).send(encode({"say": "preload_failed", "traceback": traceback.format_exc()}))
        os._exit(1)
    starter = _Starter(config, control)
    try:
        starter.serve()
    except BaseException:
        traceback.print_exc()
        starter.end()
        os._exit(70)
    starter.end()
    os._exit(0)


class _Starter:
    def __init__(self, config: StarterConfig, control: socket.socket) -> None:
        self._config = config
        self._control = control
        self._answers = ChildChannel(control)
        self._workers: dict[int, int] = {}  # pid -> worker id
        self._pids: dict[int, int] = {}  # worker id -> pid
        self._not_ours = frozenset(children_of(os.getpid()))  # processes started by preloaded modules
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGTERM, _exit)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # keeps garbage collections of workers from writing to shared pages

    def serve(self) -> None:
        self._say({"say": "ready"})
        while True:
            readable, _, _ = select.select([self._control, self._wake_read], [], [], _PARENT_CHECK_S)
            if os.getppid() != self._config.parent_pid:
                return
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
            self._reap()
            if self._control in readable:
                message, files = receive_with_files(self._control, 2)
                if message is None:
                    self._await_end_of_parent()
                    return
                if message["do"] == "stop":
                    return
                self._obey(message, files)

    def _await_end_of_parent(self) -> None:
        """Wait for the end of a parent that has closed its connection: a process closes them just before it ends."""
        deadline = time.monotonic() + _PARENT_CHECK_S
        while os.getppid() == self._config.parent_pid and time.monotonic() < deadline:
            time.sleep(0.005)

    def end(self) -> None:
        """Kill all workers and their descendants; after the end of the parent, remove the pool's directory, too."""
        self._kill_all()
        if os.getppid() != self._config.parent_pid:
            shutil.rmtree(self._config.directory, ignore_errors=True)

    def _kill_all(self) -> bool:
        """Kill all workers and their descendants. Returns whether none is left."""
        deadline = time.monotonic() + _KILL_ALL_S
        for pid in self._workers:
            _signal_group(pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            self._kill_orphans()
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                time.sleep(0.005)
            else:
                self._workers.pop(pid, None)
            if not self._workers and not self._orphans():
                break
        return not self._workers and not self._orphans()

    def _obey(self, message: dict[str, Any], files: list[int]) -> None:
        match message["do"]:
            case "start":
                self._start(message, files)
            case "dump":
                if (pid := self._pids.get(message["worker"])) is not None:
                    os.kill(pid, message["signal"])
            case "kill":
                if (pid := self._pids.get(message["worker"])) is not None:
                    _signal_group(pid, signal.SIGKILL)
            case "clear":
                is_clean = self._kill_all()
                self._pids.clear()
                self._say({"say": "cleared", "is_clean": is_clean})
            case "serve":
                settings = WorkerSettings(**message["settings"])
                self._config = replace(self._config, directory=message["directory"], worker=settings)
            case other:
                raise ValueError(f"unknown request {other!r}")

    def _start(self, message: dict[str, Any], files: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns if a process with threads forks. Workers do not use the threads that preloading started.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            _close_all(files)
            self._say({"say": "not_started", "worker": message["worker"], "error": str(error)})
            return
        if pid == 0:
            self._become_worker(message, files)
        _close_all(files)
        self._workers[pid] = message["worker"]
        self._pids[message["worker"]] = pid

    def _become_worker(self, message: dict[str, Any], files: list[int]) -> NoReturn:
        try:
            starter_pid = os.getppid()
            os.setsid()  # a new process group, so that one kill reaches compilers and other children too
            die_with_parent(starter_pid)
            adopt_orphans()
            prefer_as_memory_victim()
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            redirect_standard_streams(message["output_path"])
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            is_spawned = self._config.start_method == "spawn"
            place = WorkerPlace(
                channel_fd=files[0],
                tickets_fd=files[1],
                trace_path=message["trace_path"],
                preload=self._config.preload if is_spawned else (),
                settings=self._config.worker,
            )
            if is_spawned:
                for fd in files:
                    os.set_inheritable(fd, True)
                arguments = bootstrap_arguments("worker", "spawned_main", place.to_json())
                os.execv(sys.executable, [sys.executable, *arguments])
            run_worker(place)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(70)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (worker := self._workers.pop(pid, None)) is not None:
                del self._pids[worker]
                _kill_rest_of_group(pid)
                self._say({"say": "exited", "worker": worker, "status": os.waitstatus_to_exitcode(status)})
            self._kill_orphans()

    def _orphans(self) -> list[int]:
        return [pid for pid in children_of(os.getpid()) if pid not in self._workers and pid not in self._not_ours]

    def _kill_orphans(self) -> None:
        """Kill descendants of ended workers, which have become children of this process, even those in another session."""
        for pid in self._orphans():
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # a process that changed its user cannot be killed
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is no other process

    def _say(self, message: dict[str, Any]) -> None:
        self._answers.send(encode(message))


def _signal_group(pid: int, number: int) -> None:
    """Signal the process group, or the process alone if it has not made its group yet."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _kill_rest_of_group(pid: int) -> None:
    """Kill the group of a reaped leader. The pid itself may belong to another process by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _close_all(files: list[int]) -> None:
    for fd in files:
        os.close(fd)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler for SIGCHLD, without which the wake-up pipe is not written."""


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
