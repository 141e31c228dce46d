"""Start tickets: a task queued in a worker's socket can still be taken back, and exactly one side gets it.

The next task is sent while the current one runs, so that a worker never waits. Should the current one hang, the queued
one must not wait behind it while other workers are idle. A message cannot be unsent, but each task has a ticket in a
pipe whose reading end both sides hold: the worker reads the ticket before it starts the task, the parent reads it to
take the task back. The kernel hands a ticket to one reader only.
"""

from __future__ import annotations

import os
import struct

_TICKET = struct.Struct(">Q")


class TicketOffice:
    """The parent's side."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self._write_fd, False)

    def issue(self, sequence: int) -> None:
        """Before the task is sent: a worker that sees the task finds its ticket, or finds it withdrawn."""
        os.write(self._write_fd, _TICKET.pack(sequence))

    def withdraw(self, sequence: int) -> bool:
        """Whether the ticket was still there; then the worker will never start that task.

        Only for the single ticket left in the pipe: the task before it must be known to have started.
        """
        try:
            data = os.read(self.read_fd, _TICKET.size)
        except BlockingIOError:
            return False
        assert data == _TICKET.pack(sequence), f"withdrew ticket {data!r}, but should be {sequence}"
        return True

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self._write_fd)


class TicketHolder:
    """The worker's side."""

    def __init__(self, read_fd: int) -> None:
        self._fd = read_fd
        self._held = -1

    def may_start(self, sequence: int) -> bool:
        """Take the ticket of a task. A ticket of a later task is kept for it."""
        while self._held < sequence:
            try:
                data = os.read(self._fd, _TICKET.size)
            except BlockingIOError:
                return False
            if not data:
                return False
            (self._held,) = _TICKET.unpack(data)
        return self._held == sequence
