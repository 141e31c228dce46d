"""The parent's side of a starter process (`starter.py`): launch it, request workers, receive their exits."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oracle.isolate.channel import ParentChannel, encode
from oracle.isolate.settings import PoolSettings, WorkerSettings
from oracle.isolate.starter import StarterConfig, bootstrap_arguments
from oracle.isolate.task import Environment

_LOG_TAIL_BYTES = 16 << 10
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """A worker to start, with its ends of the connections."""

    worker: int
    output_path: Path
    trace_path: Path
    channel: socket.socket
    tickets_fd: int


class StarterHandle:
    """One starter process. `key`: what it can be kept by for another pool (`kept_starters.py`), None if by nothing."""

    def __init__(
        self,
        *,
        number: int,
        environment: Environment,
        settings: PoolSettings,
        directory: Path,
        key: object | None = None,
    ) -> None:
        self.environment = environment
        self.key = key
        self.is_ready = False
        self.is_gone = False
        self.preload_error: str | None = None
        self._waiting: list[WorkerRequest] = []
        self._log = tempfile.TemporaryFile(prefix=f"starter-{number}-")  # noqa: SIM115 - outlives the pool's directory
        ours, theirs = socket.socketpair()
        config = StarterConfig(
            control_fd=theirs.fileno(),
            parent_pid=os.getpid(),
            directory=str(directory),
            preload=settings.preload,
            start_method=settings.start_method,
            worker=settings.worker,
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *bootstrap_arguments("starter", "starter_main", config.to_json())],
                env=settings.process_environment(os.environ, environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # keeps a terminal's Ctrl-C or hang-up away from it
            )
        self.channel = ParentChannel(ours)

    def start(self, request: WorkerRequest) -> None:
        """Request a worker now, or when preloading is done. Closes the worker's end of the channel in this process."""
        if self.is_ready:
            self._send(request)
        else:
            self._waiting.append(request)

    def receive(self) -> list[dict[str, Any]]:
        messages = self.channel.receive(everything=True)
        for message in messages:
            if message["say"] == "ready":
                self.is_ready = True
            elif message["say"] == "preload_failed":
                self.preload_error = message["traceback"]
        if self.is_ready:
            for request in self._waiting:
                self._send(request)
            self._waiting.clear()
        return messages

    def signal_worker(self, worker: int, number: int) -> None:
        self.channel.send(encode({"do": "dump", "worker": worker, "signal": number}))

    def kill_worker(self, worker: int) -> None:
        self.channel.send(encode({"do": "kill", "worker": worker}))

    def lend(self, *, environment: Environment, directory: Path, worker: WorkerSettings) -> bool:
        """Give a kept starter to another pool. Returns whether it is alive."""
        if self._process.poll() is not None:
            return False
        self.environment = environment
        self.channel.send(encode({"do": "serve", "directory": str(directory), "settings": asdict(worker)}))
        return True

    def take_back(self) -> bool:
        """Have it kill all workers with their descendants. Returns whether it is fit for another pool."""
        if not self.is_ready or self.is_gone:
            return False
        self.channel.send(encode({"do": "clear"}))
        deadline = time.monotonic() + _END_S
        while not self.channel.is_closed and (left_s := deadline - time.monotonic()) > 0:
            select.select([self.channel], [], [], left_s)
            for message in self.channel.receive(everything=True):
                if message["say"] == "cleared":
                    return message["is_clean"]
        return False

    def ask_to_stop(self) -> None:
        self.channel.send(encode({"do": "stop"}))

    def end(self) -> str:
        """Wait for the process to end, and kill it if it does not. Returns why it ended and what it printed."""
        self.is_gone = True
        for request in self._waiting:
            request.channel.close()
        self._waiting.clear()
        self.channel.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._log:
            size = os.fstat(self._log.fileno()).st_size
            tail = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        if self.preload_error is not None:
            return self.preload_error
        printed = tail.decode(errors="replace")
        return f"the process that starts workers ended with exit code {self._process.returncode}\n{printed}"

    def kill(self) -> None:
        self._process.kill()

    def _send(self, request: WorkerRequest) -> None:
        message = {
            "do": "start",
            "worker": request.worker,
            "output_path": str(request.output_path),
            "trace_path": str(request.trace_path),
        }
        try:
            self.channel.send_with_files(encode(message), [request.channel.fileno(), request.tickets_fd])
        except OSError:  # the starter is gone; the channel reports its end, and the worker counts as not started
            return
        finally:
            request.channel.close()
