"""A process that imports Triton in one of its two modes, and serves many requests.

Interpreter and compiler cannot share a process: TRITON_INTERPRET decides, when Triton is imported, what its own functions are.
Requests and answers are lines of JSON over pipes of their own, so that nothing a kernel prints gets in between.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from refimpl.codegen.kernel import LevelUnavailable

# A module run by -m is imported a second time if a package imports it too.
_BOOTSTRAP = "import importlib, sys; importlib.import_module(sys.argv[1]).serve_worker(sys.argv[2:])"


class WorkerDied(LevelUnavailable):
    """The worker process died in a request, or was killed after a timeout."""


class Worker:
    """A process that runs a module's `serve_worker`. It is started at the first request, and again after it died."""

    def __init__(self, module: str, *, interpret: bool) -> None:
        self.module, self.interpret = module, interpret
        self._process: subprocess.Popen[bytes] | None = None
        self._to = self._from = -1
        self._owner = 0

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        """The answer to a request. Raises WorkerDied if there is none in time."""
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            self._start()
        assert self._process is not None
        os.write(self._to, json.dumps(request).encode() + b"\n")
        line, deadline = b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._from, 1 << 16) if ready else b""
            if not part:
                self._end_died(f"no answer within {timeout_s:.0f} s" if not ready else "the process died")
            line += part
        return json.loads(line)

    def _end_died(self, how: str) -> None:
        process = self._process
        self.close()
        code = process.returncode if process is not None else None
        raise WorkerDied(
            self.module, seen=f"{how} (exit code {code})", do="run fewer launches at a time; look for wild pointers"
        )

    def _start(self) -> None:
        self.close()
        read_request, self._to = os.pipe()
        self._from, write_answer = os.pipe()
        environment = {**os.environ, "TRITON_INTERPRET": "1" if self.interpret else "0"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment.setdefault("OMP_NUM_THREADS", "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, self.module, str(read_request), str(write_answer)],
            env=environment, pass_fds=(read_request, write_answer), stdin=subprocess.DEVNULL, stdout=2,
        )  # fmt: skip
        self._owner = os.getpid()
        os.close(read_request)
        os.close(write_answer)
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the process, if this process started it and it is running."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            os.close(self._to)
            os.close(self._from)
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def serve(answer: Any, arguments: list[str]) -> None:
    """The worker's loop: `answer(request)` per line, until the pipe is closed."""
    read_request, write_answer = (int(argument) for argument in arguments)
    with os.fdopen(read_request, "rb") as requests, os.fdopen(write_answer, "wb") as answers:
        for line in requests:
            answers.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
            answers.flush()
