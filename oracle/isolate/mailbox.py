"""Commands from other threads to the supervisor thread, with a pipe that wakes it up."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Command: TypeAlias = Callable[[], None]


class Mailbox:
    """A queue of commands that the owner's thread runs in order. A closed mailbox accepts none."""

    def __init__(self) -> None:
        self.wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_write, False)
        self._commands: deque[Command] = deque()
        # Reentrant: a garbage collection inside may close a run, which submits a command.
        self._closing = threading.RLock()
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
            if not self._is_closed:  # otherwise the descriptor may be another file by now
                with contextlib.suppress(BlockingIOError):  # full, so the owner wakes anyway
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
        """Accept no more commands; run the accepted ones."""
        with self._closing:
            self._is_closed = True
            os.close(self.wake_fd)
            os.close(self._wake_write)
        self.run_commands()
