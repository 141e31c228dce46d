"""Set up a worker's file descriptors 0 to 2, and restore them after a task that closed or redirected them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from typing import TextIO

# Our own descriptors have high numbers, so that a task that closes a descriptor twice does not close them.
_FIRST_OWN_FD = 200


def move_out_of_the_way(fd: int) -> int:
    """A copy of `fd` at a high number; the original is closed."""
    try:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_FD)
    except OSError:  # the limit on open files is lower
        return fd
    os.close(fd)
    return copy


def redirect_standard_streams(output_path: str) -> None:
    """Read stdin from /dev/null, and append stdout and stderr to a file."""
    null = os.open(os.devnull, os.O_RDONLY)
    # O_APPEND: the parent may truncate the file while processes write to it.
    output = os.open(output_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for fd in {null, output} - {0, 1, 2}:
        os.close(fd)


class StandardStreams:
    """Stores the file descriptors 0 to 2 and their `sys` objects, and restores them."""

    def __init__(self) -> None:
        self._saved = {fd: move_out_of_the_way(os.dup(fd)) for fd in (0, 1, 2)}
        self._identity = {fd: _identity(fd) for fd in (0, 1, 2)}
        self._install()

    def output_size(self) -> int:
        return os.fstat(self._saved[1]).st_size

    def flush(self) -> None:
        for stream in (self._stdout, self._stderr):
            with contextlib.suppress(ValueError, OSError):  # a task closed it; `restore` reopens it
                stream.flush()

    def restore(self) -> None:
        for fd, identity in self._identity.items():
            if _identity(fd) != identity:
                os.dup2(self._saved[fd], fd)
        are_ours = sys.stdout is self._stdout and sys.stderr is self._stderr
        if not are_ours or self._stdout.closed or self._stderr.closed:
            self._install()

    def _install(self) -> None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process lives
        self._stdout: TextIO = _line_writer(1)
        self._stderr: TextIO = _line_writer(2)
        sys.stdout = sys.__stdout__ = self._stdout
        sys.stderr = sys.__stderr__ = self._stderr


def _line_writer(fd: int) -> TextIO:
    # Line buffered, so that output before a crash is in the file.
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
