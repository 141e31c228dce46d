"""The two files of a worker: its output, and the Python stacks that faulthandler wrote."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TAIL_BYTES = 16 << 10
_TRACE_BYTES = 64 << 10


class WorkerFiles:
    """Reads the tails written by the running task, after the positions set by `mark` at its start."""

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
