"""The build server of a campaign: decides which workers run, and compiles their kernels together. Does not import torch.

Workers connect to a Unix socket and send JSON lines. `{"op": "start"}` asks for a turn, `{"op": "build", "jobs": [...]}` gives
the turn back until the kernels are built, `{"op": "end"}` gives it back. The first two are answered with `{"go": true}` when a
turn is free. There are as many turns as `--workers`; a call of the compiler takes one too. The turn of a worker that dies becomes
free.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from fuzz.builds.unity import BuildJob, build

BUILDS = "TORCH_ORACLE_BUILDS"  # environment variable with the path of the socket
STUBS = "stubs"  # beside the socket: libraries for the linker (`linking.py`)
_MOST_JOBS = 40  # in one call, since the compiler's time and memory grow with their number
_WORTH_A_CALL = 0.4  # if this share of the workers waits, compile, although others still run
_CHUNK_BYTES = 1 << 16


@dataclass(eq=False, slots=True)
class _Client:
    """One worker process."""

    connection: socket.socket
    received: bytes = b""
    has_turn: bool = False
    is_closed: bool = False


@dataclass(eq=False, slots=True)
class _Request:
    """Kernels that a worker waits for."""

    client: _Client
    jobs: tuple[BuildJob, ...]


@dataclass(slots=True)
class _State:
    """Turns and waiting requests. Used by the server's thread only."""

    free: int
    clients: dict[socket.socket, _Client] = field(default_factory=dict)
    runnable: deque[_Client] = field(default_factory=deque)
    requests: list[_Request] = field(default_factory=list)
    calls: int = 0  # of the compiler that are running


class BuildServer:
    """A context manager that serves until it is left. `path` is the socket, for the workers' environment."""

    def __init__(self, *, turns: int, folder: str | None = None) -> None:
        """`folder`: a folder for the socket and for what the linker needs, deleted at the end; None for a temporary one."""
        self._state = _State(free=turns)
        self._turns = turns
        self._folder = Path(folder or tempfile.mkdtemp(prefix="torch-oracle-builds-"))
        self._folder.mkdir(exist_ok=True)
        self.path = str(self._folder / "socket")
        self.libraries = 0
        self.calls = 0
        self._done: deque[list[_Request]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="builds", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._wake()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # already closed: a call of the compiler may end after the campaign
            os.write(self._wake_write, b"x")

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._step()
        finally:  # closing the connections tells the workers that wait
            for client in list(self._state.clients.values()):
                client.connection.close()
            self._selector.close()
            self._listener.close()
            os.close(self._wake_write)
            os.close(self._wake_read)

    def _step(self) -> None:
        for key, _ in self._selector.select():
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wake_read:
                os.read(self._wake_read, _CHUNK_BYTES)
            else:
                self._read(self._state.clients[key.fileobj])  # pyright: ignore[reportArgumentType]
        while self._done:
            self._built(self._done.popleft())
        self._schedule()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._state.clients[connection] = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        *lines, client.received = (client.received + data).split(b"\n")
        for line in lines:
            self._take(client, json.loads(line))

    def _take(self, client: _Client, message: dict[str, object]) -> None:
        state = self._state
        if client.has_turn:
            client.has_turn = False
            state.free += 1
        if message["op"] == "start":
            state.runnable.append(client)
        elif message["op"] == "build":
            jobs = message["jobs"]
            assert isinstance(jobs, list)
            state.requests.append(_Request(client, tuple(BuildJob.from_json(job) for job in jobs)))

    def _drop(self, client: _Client) -> None:
        state = self._state
        if client.is_closed:
            return
        client.is_closed = True
        state.free += client.has_turn
        client.has_turn = False
        if client in state.runnable:
            state.runnable.remove(client)
        state.requests = [request for request in state.requests if request.client is not client]
        self._selector.unregister(client.connection)
        del state.clients[client.connection]
        client.connection.close()

    def _schedule(self) -> None:
        state = self._state
        while state.free and state.runnable:
            client = state.runnable.popleft()
            client.has_turn = True
            state.free -= 1
            try:
                client.connection.sendall(b'{"go": true}\n')
            except OSError:
                self._drop(client)
        while state.free and state.requests and self._is_worth_a_call():
            self._call(self._next_requests(self._share()))

    def _is_worth_a_call(self) -> bool:
        is_anybody_running = any(client.has_turn for client in self._state.clients.values())
        return not is_anybody_running or len(self._state.requests) >= self._least()

    def _least(self) -> int:
        """The number of waiting requests that is worth a call of the compiler."""
        return min(math.ceil(_WORTH_A_CALL * len(self._state.clients)), _MOST_JOBS // 2)

    def _share(self) -> int:
        """How many requests one call takes. Not all, if another turn will soon be free for the others."""
        waiting = len(self._state.requests)
        return max(self._least(), math.ceil(waiting / self._turns)) if waiting >= 2 * self._least() else waiting

    def _next_requests(self, most: int) -> list[_Request]:
        """The requests that have waited longest, and others with the same command."""
        state = self._state
        first = {job.general_command() for job in state.requests[0].jobs}
        chosen, jobs = [], 0
        for request in list(state.requests):
            if len(chosen) >= most:
                break
            if chosen and (jobs + len(request.jobs) > _MOST_JOBS or not self._joins(request, first)):
                continue
            state.requests.remove(request)
            chosen.append(request)
            jobs += len(request.jobs)
        return chosen

    @staticmethod
    def _joins(request: _Request, commands: set[str]) -> bool:
        return {job.general_command() for job in request.jobs} <= commands

    def _call(self, requests: list[_Request]) -> None:
        state = self._state
        state.free -= 1
        state.calls += 1
        threading.Thread(target=self._compile, args=(requests,), daemon=True).start()

    def _compile(self, requests: list[_Request]) -> None:
        """Compile in a thread of its own. Jobs with different commands need different calls."""
        try:
            groups = by_command([job for request in requests for job in request.jobs])
            for group in groups:
                self.libraries += len(build(group, stubs=self._folder / STUBS))
            self.calls += len(groups)
        finally:
            self._done.append(requests)
            self._wake()

    def _built(self, requests: list[_Request]) -> None:
        state = self._state
        state.free += 1
        state.calls -= 1
        state.runnable.extend(request.client for request in requests if not request.client.is_closed)


def by_command(jobs: Sequence[BuildJob]) -> list[list[BuildJob]]:
    """Group the jobs that may be built together; each target occurs once."""
    groups: dict[str, list[BuildJob]] = {}
    for job in {job.target: job for job in jobs}.values():
        groups.setdefault(job.general_command(), []).append(job)
    return list(groups.values())
