"""The worker's side: takes turns, and sends Inductor's kernels to the campaign's build server.

Without a server in the environment nothing changes. If Inductor's functions do not look as expected, the process takes turns and
compiles by itself. To confirm and reduce a finding (`turn(shares_builds=False)`) each kernel is compiled by its own call, with
Inductor's command except for the options that `linking.py` leaves out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch._inductor.async_compile
import torch._inductor.codecache
import torch._inductor.cpp_builder

from fuzz.builds.linking import quicker
from fuzz.builds.server import BUILDS, STUBS
from fuzz.builds.unity import BuildJob

TaskFunction = Callable[[Mapping[str, Any], Callable[[str], None]], dict[str, Any]]


class _Turns:
    """This process's connection to the build server."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")
        self.shares_builds = False  # within a turn that does

    def ask(self, message: Mapping[str, Any]) -> None:
        """Send a message, and wait until this process may run. A program's time limit does not include the waiting."""
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            self.tell(message)
            if not self._file.readline():
                raise EOFError("the campaign has ended")
        finally:
            if left:
                signal.setitimer(signal.ITIMER_REAL, left)

    def tell(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


_turns: _Turns | None = None


@contextlib.contextmanager
def turn(*, shares_builds: bool) -> Iterator[None]:
    """Run the block when this process gets a turn. `shares_builds`: kernels are compiled together with those of other workers."""
    path = os.environ.get(BUILDS)
    if not path:
        yield
        return
    global _turns
    if _turns is None:
        _turns = _Turns(path)
        link_quickly(Path(path).parent / STUBS)
    if shares_builds:
        share_builds()
    _turns.ask({"op": "start"})
    _turns.shares_builds = shares_builds
    try:
        yield
    finally:
        _turns.shares_builds = False
        _turns.tell({"op": "end"})


def in_turn(*, shares_builds: bool) -> Callable[[TaskFunction], TaskFunction]:
    """A decorator for task functions: run when the process gets a turn."""

    def wrap(function: TaskFunction) -> TaskFunction:
        @functools.wraps(function)
        def run(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
            with turn(shares_builds=shares_builds):
                return function(payload, progress)

        return run

    return wrap


def link_quickly(stubs: Path) -> None:
    """Patch Inductor's calls of the compiler in this process."""
    builder: Any = torch._inductor.cpp_builder
    run: Callable[..., None] | None = getattr(builder, "run_compile_cmd", None)
    if run is None:
        return

    @functools.wraps(run)
    def run_quicker(cmd_line: str, *args: Any, **options: Any) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # no room for the stubs: use the original command
            cmd_line = shlex.join(quicker(shlex.split(cmd_line), stubs))
        run(cmd_line, *args, **options)

    builder.run_compile_cmd = run_quicker


class Waiting:
    """Stands for a kernel that is not built yet, in Inductor's generated module."""

    def __init__(self, load: Callable[[], Any], jobs: Sequence[BuildJob]) -> None:
        self.load = load
        self.jobs = jobs


def share_builds() -> bool:
    """Patch Inductor, once in a process. False if its functions are not as expected."""
    compiler: Any = torch._inductor.async_compile.AsyncCompile
    cache: Any = getattr(torch._inductor.codecache, "CppPythonBindingsCodeCache", None)
    if not all(hasattr(compiler, name) for name in ("cpp_pybinding", "wait")):
        return False
    if not hasattr(cache, "load_pybinding_async"):
        return False
    _patch(compiler, cache)
    return True


@functools.cache
def _patch(compiler: Any, cache: Any) -> None:
    cpp_pybinding, wait = compiler.cpp_pybinding, compiler.wait

    @functools.wraps(cpp_pybinding)
    def deferred(self: Any, argtypes: Sequence[str], source_code: str) -> Any:
        if _turns is None or not _turns.shares_builds:
            return cpp_pybinding(self, argtypes, source_code)
        jobs: list[BuildJob] = []
        load = cache.load_pybinding_async(argtypes, source_code, submit_fn=functools.partial(_submitted, jobs))
        return Waiting(load, jobs)

    @functools.wraps(wait)
    def wait_for_all(self: Any, scope: dict[str, Any]) -> None:
        resolve(scope)
        wait(self, scope)

    compiler.cpp_pybinding, compiler.wait = deferred, wait_for_all


class _Submitted:
    """Replaces Inductor's future. Inductor's builder runs after `result`: it finds the library, or compiles it."""

    def result(self) -> None:
        return None


def _submitted(jobs: list[BuildJob], task: Any) -> _Submitted:
    """Note what a task would build. Its last argument is a tuple of builders, one for each file."""
    builders = task.args[-1] if isinstance(task, functools.partial) and task.args else ()
    if isinstance(builders, tuple) and len(builders) == 1:
        with contextlib.suppress(AttributeError, ValueError):
            jobs.append(_job(builders[0]))
    return _Submitted()


def _job(builder: Any) -> BuildJob:
    command = builder.get_command_line()
    (source,) = [word for word in shlex.split(command) if word.endswith(".cpp")]
    return BuildJob(source=source, target=str(builder.get_target_file_path()), command=command)


def resolve(scope: dict[str, Any]) -> None:
    """Build the kernels that wait in a generated module's namespace, and put them there."""
    waiting = {name: value for name, value in scope.items() if isinstance(value, Waiting)}
    jobs = [job for kernel in waiting.values() for job in kernel.jobs if not os.path.exists(job.target)]
    if jobs and _turns is not None and _turns.shares_builds:
        _turns.ask({"op": "build", "jobs": [job.to_json() for job in jobs]})
    for name, kernel in waiting.items():
        scope[name] = kernel.load()
