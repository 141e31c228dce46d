"""Send and receive JSON messages between parent, starter and workers over a stream socket.

A frame is an 8-byte big-endian length and that many bytes of JSON. `multiprocessing.connection.Connection` has frames too, but
reads and writes whole messages: a worker that hangs within a large result, or a large task for a busy worker, would block the
supervisor and with it all time limits. Here the parent's side never blocks. Nothing is ever pickled.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

from oracle.isolate.task import JSON

HEADER = struct.Struct(">Q")
MAX_MESSAGE_BYTES = 1 << 30
_READ_BYTES = 1 << 20
_SEND_FILES_S = 10.0
_MAX_READS = 32  # in one call, so that a worker with a huge result does not starve the others


class ChannelCorruptError(Exception):
    """The other side sent something that is no message."""


def encode(message: Mapping[str, JSON]) -> bytes:
    """The message as JSON bytes. Raises ValueError for NaN and infinities, which are not JSON."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii")


def decode(frame: bytes) -> dict[str, Any]:
    try:
        message = json.loads(frame)
    except ValueError as error:
        raise ChannelCorruptError(f"not JSON: {frame[:80]!r}") from error
    if not isinstance(message, dict):
        raise ChannelCorruptError(f"not an object: {frame[:80]!r}")
    return message


class _FrameBuffer:
    """Collects bytes and returns whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes | None:
        if len(self._data) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._data)
        if length > MAX_MESSAGE_BYTES:
            raise ChannelCorruptError(f"message length {length}, but should be at most {MAX_MESSAGE_BYTES}")
        end = HEADER.size + length
        if len(self._data) < end:
            return None
        frame = bytes(memoryview(self._data)[HEADER.size : end])
        del self._data[:end]
        return frame


class ParentChannel:
    """The supervisor's side, which never blocks and buffers bytes that could not be sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._incoming = _FrameBuffer()
        self._outgoing = bytearray()
        self.is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._outgoing) and not self.is_closed

    def send(self, frame: bytes) -> None:
        self._outgoing += HEADER.pack(len(frame)) + frame
        self.flush()

    def flush(self) -> None:
        while self.has_unsent:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone; its last messages are read before the channel counts as closed
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def send_with_files(self, frame: bytes, files: list[int]) -> None:
        """Send one small message with file descriptors, which are attached to its first byte. Blocks."""
        data = HEADER.pack(len(frame)) + frame
        self._socket.settimeout(_SEND_FILES_S)
        try:
            self.flush()
            sent = socket.send_fds(self._socket, [data], files)
            if sent < len(data):
                self._socket.sendall(data[sent:])
        finally:
            self._socket.setblocking(False)

    def receive(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """The messages received so far, each with its size as `frame_bytes`. `everything` ignores the limit _MAX_READS."""
        reads = 0
        while not self.is_closed and (everything or reads < _MAX_READS):
            reads += 1
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
                break
            self._incoming.feed(data)
            if len(data) < _READ_BYTES and not everything:
                break
        messages: list[dict[str, Any]] = []
        while (frame := self._incoming.take()) is not None:
            messages.append({**decode(frame), "frame_bytes": len(frame)})
        return messages

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()


class ChildChannel:
    """A starter's or worker's side, which blocks. Several threads may send on it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._incoming = _FrameBuffer()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(HEADER.pack(len(frame)) + frame)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the other side is gone."""
        while (frame := self._incoming.take()) is None:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                return None
            self._incoming.feed(data)
        return decode(frame)

    def close(self) -> None:
        self._socket.close()


def receive_with_files(sock: socket.socket, max_files: int) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive a message of `ParentChannel.send_with_files`. Reads no byte past it, so that no descriptors are lost."""
    data, files, _, _ = socket.recv_fds(sock, HEADER.size, max_files)
    while data and len(data) < HEADER.size:
        more = sock.recv(HEADER.size - len(data))
        if not more:
            return None, files
        data += more
    if not data:
        return None, files
    (length,) = HEADER.unpack(data)
    frame = b""
    while len(frame) < length:
        more = sock.recv(length - len(frame))
        if not more:
            return None, files
        frame += more
    return decode(frame), files
