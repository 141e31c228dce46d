"""Frames and tickets, without any process."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from oracle.isolate.channel import HEADER, ChannelCorruptError, ChildChannel, ParentChannel, encode
from oracle.isolate.ticket import TicketHolder, TicketOffice


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_keep_their_borders(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    parent = ParentChannel(ours)
    frames = [encode({"n": number, "text": "x" * (number * 1000)}) for number in range(5)]
    stream = b"".join(HEADER.pack(len(frame)) + frame for frame in frames)
    received = []
    for start in range(0, len(stream), 777):
        theirs.sendall(stream[start : start + 777])
        received += parent.receive()
    assert [message["n"] for message in received] == [0, 1, 2, 3, 4]
    assert [message["frame_bytes"] for message in received] == [len(frame) for frame in frames]


def test_the_parent_never_blocks_on_a_worker_that_does_not_read(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    parent, child = ParentChannel(ours), ChildChannel(theirs)
    parent.send(encode({"text": "x" * 3_000_000}))
    assert parent.has_unsent
    ours.settimeout(5)  # now the other side reads, in this same thread: a socket's worth at a time
    theirs.setblocking(False)
    data = b""
    while parent.has_unsent or len(data) < 3_000_000:
        ours.setblocking(False)
        parent.flush()
        try:
            data += theirs.recv(1 << 20)
        except BlockingIOError:
            continue
    assert len(data) == HEADER.size + len(encode({"text": "x" * 3_000_000}))
    assert child.fileno() == theirs.fileno()


def test_half_a_message_is_no_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    parent = ParentChannel(ours)
    theirs.sendall(HEADER.pack(100) + b'{"say"')
    assert parent.receive() == []
    theirs.close()
    assert parent.receive() == []
    assert parent.is_closed


@pytest.mark.parametrize("junk", [b"\xff" * 16, HEADER.pack(3) + b"abc", HEADER.pack(3) + b"[1]"])
def test_what_is_no_message_is_an_error(sockets: tuple[socket.socket, socket.socket], junk: bytes) -> None:
    ours, theirs = sockets
    theirs.sendall(junk)
    with pytest.raises(ChannelCorruptError):
        ParentChannel(ours).receive()


def test_a_ticket_goes_to_one_side_only() -> None:
    office = TicketOffice()
    holder = TicketHolder(office.read_fd)
    office.issue(0)
    assert holder.may_start(0)
    office.issue(1)
    assert office.withdraw(1)
    assert not holder.may_start(1)
    office.issue(2)
    assert holder.may_start(2)
    assert not office.withdraw(2)
    office.close()


def test_a_withdrawn_task_does_not_start_with_the_ticket_of_the_next() -> None:
    office = TicketOffice()
    holder = TicketHolder(office.read_fd)
    office.issue(0)
    assert holder.may_start(0)
    office.issue(1)
    assert office.withdraw(1)
    office.issue(2)
    assert not holder.may_start(1)
    assert holder.may_start(2)
    office.close()
