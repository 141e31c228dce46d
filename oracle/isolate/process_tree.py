"""Memory, CPU time and descendants of a process, and Linux calls that tie processes together.

Memory is anonymous plus shared pages. File-backed pages are left out: a forked worker maps hundreds of megabytes of torch's
libraries as it touches them, which the system can drop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import psutil

IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one process."""

    private_bytes: int
    """Anonymous and shared resident memory."""
    virtual_bytes: int


def memory_of(pid: int) -> Memory | None:
    """The memory of a process; None if it no longer exists."""
    if not IS_LINUX:
        try:
            info = psutil.Process(pid).memory_info()
        except psutil.Error:
            return None
        return Memory(private_bytes=info.rss, virtual_bytes=info.vms)
    try:
        text = _read(f"/proc/{pid}/status")
    except OSError:
        return None
    return Memory(
        private_bytes=_kilobytes(text, b"RssAnon:") + _kilobytes(text, b"RssShmem:"),
        virtual_bytes=_kilobytes(text, b"VmSize:"),
    )


def descendants_of(pid: int) -> list[int]:
    """Children, their children and so on, without `pid` itself."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop())
        found += children
        waiting += children
    return found


def children_of(pid: int) -> list[int]:
    tasks = f"/proc/{pid}/task"
    try:
        threads = os.listdir(tasks)
        return [int(child) for thread in threads for child in _read(f"{tasks}/{thread}/children").split()]
    except OSError:  # the process or one of its threads ended; or no Linux, or a kernel without this file
        if _HAS_CHILDREN_FILES:
            return []
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def tree_of(pid: int) -> list[int]:
    """The process, then its descendants."""
    return [pid, *descendants_of(pid)]


ThreadTimes: TypeAlias = tuple[int, int]
"""Nanoseconds that a thread ran, and that it waited in a run queue for a processor."""


def thread_times(pids: Iterable[int]) -> dict[int, ThreadTimes] | None:
    """Times of every thread of these processes, by thread id; None if the system does not count them.

    A wait in a run queue is counted when it ends. Processes and threads that have ended are left out.
    """
    if not _HAS_SCHEDSTAT:
        return None
    found: dict[int, ThreadTimes] = {}
    for pid in pids:
        tasks = f"/proc/{pid}/task"
        try:
            threads = os.listdir(tasks)
        except OSError:
            continue
        for thread in threads:
            try:
                ran, queued, _ = _read(f"{tasks}/{thread}/schedstat").split()
            except (OSError, ValueError):
                continue
            found[int(thread)] = (int(ran), int(queued))
    return found


def start_time_of(pid: int) -> float:
    """Start time of a process, on the clock of `process_clock`; infinity if the process is gone."""
    if not IS_LINUX:
        try:
            return psutil.Process(pid).create_time()
        except psutil.Error:
            return float("inf")
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return float("inf")
    fields = stat[
        stat.rindex(b")") + 2 :
    ].split()  # the name before may contain spaces; field 22 of proc(5) is [19] here
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process_clock() -> float:
    """The clock of process start times: on Linux seconds since boot, never adjusted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if IS_LINUX else time.time()


def die_with_parent(parent_pid: int) -> None:
    """Kill this process when its parent ends, however it ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True, name="watch-parent").start()
    if os.getppid() != parent_pid:  # the parent ended before the request was made
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose parent ends, so that all can be killed. Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def prefer_as_memory_victim() -> None:
    """Make the system prefer this worker, over the parent or the user's session, if the machine runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("800")
    except OSError:
        return  # no Linux, or a read-only /proc: not essential


class TreeMemory:
    """Growth of a worker and its descendants since a task began."""

    def __init__(self, *, pid: int, base_bytes: int) -> None:
        self._base_bytes = {pid: base_bytes}
        self._began_at = process_clock()
        self.peak_bytes = 0

    def growth(self, pids: Sequence[int]) -> int:
        """Growth in bytes, over the current processes of the tree (`tree_of`)."""
        total = 0
        for pid in pids:
            memory = memory_of(pid)
            if memory is None:
                continue
            if pid not in self._base_bytes:
                # For a process left behind by an earlier task, the first size seen is the base.
                is_older = start_time_of(pid) < self._began_at - 0.05
                self._base_bytes[pid] = memory.private_bytes if is_older else 0
            total += max(0, memory.private_bytes - self._base_bytes[pid])
        self.peak_bytes = max(self.peak_bytes, total)
        return total


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _kilobytes(status: bytes, field: bytes) -> int:
    at = status.find(field)
    return int(status[at + len(field) :].split(None, 1)[0]) * 1024 if at >= 0 else 0


_HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
_HAS_SCHEDSTAT = os.path.exists("/proc/self/schedstat")
