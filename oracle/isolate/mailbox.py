"""How other threads reach the supervisor thread: commands, and a pipe that wakes it up."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Command: TypeAlias = Callable[[], None]


class Mailbox:
    """Commands are run by the owner's thread, in order; once it is closed none is accepted."""

    def __init__(self) -> None:
        self.wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_write, False)
        self._commands: deque[Command] = deque()
        self._closing = threading.RLock()  # reentrant: a garbage collection inside may drop a run, which submits
        self._is_closed = False

    def submit(self, command: Command) -> bool:
        """Whether the command will be run."""
        with self._closing:
            if self._is_closed:
                return False
            self._commands.append(command)
        self.wake()
        return True

    def wake(self) -> None:
        with self._closing:
            if not self._is_closed:  # else the number of the pipe may belong to another file by now
                with contextlib.suppress(BlockingIOError):  # full: the owner wakes anyway
                    os.write(self._wake_write, b"w")

    # Called by the owner.

    @property
    def has_commands(self) -> bool:
        return bool(self._commands)

    def drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def close(self) -> None:
        """Accept nothing more; what was accepted is run."""
        with self._closing:
            self._is_closed = True
            os.close(self.wake_fd)
            os.close(self._wake_write)
        self.run_commands()
