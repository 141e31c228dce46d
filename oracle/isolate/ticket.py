"""Start tickets, by which the parent can take back a task that is queued in a worker's socket.

The next task is sent while the current one runs, so that a worker never waits. If the current one hangs, the queued one must be
able to run on an idle worker. A message cannot be unsent, so each task has a ticket in a pipe that both sides can read: the
worker reads the ticket before it starts the task, the parent reads it to take the task back. Only one of them can read it.
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
        """Write a task's ticket. Must precede sending the task, so that a worker without a ticket knows it was withdrawn."""
        os.write(self._write_fd, _TICKET.pack(sequence))

    def withdraw(self, sequence: int) -> bool:
        """Take the ticket back. Returns whether it was still there; then the worker never starts the task.

        It must be the only ticket in the pipe: the task before it must have started.
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
        """Take the ticket of a task; returns whether it was there. A ticket of a later task is kept for that task."""
        while self._held < sequence:
            try:
                data = os.read(self._fd, _TICKET.size)
            except BlockingIOError:
                return False
            if not data:
                return False
            (self._held,) = _TICKET.unpack(data)
        return self._held == sequence
