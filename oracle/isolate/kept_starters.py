"""Starters kept between pools: a pool that stops leaves its starter to the next pool that would start the same process.

A starter imports what it preloads, with torch some seconds. Nothing is kept unless `keep_starters` says so. One pool at a time
has a kept starter: before it is given away, every process that came from it is gone, and if that fails the starter ends. Workers
are forked anew for each pool, from a process that has run no task.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from oracle.isolate.settings import PoolSettings, StartMethod
from oracle.isolate.starter_handle import StarterHandle
from oracle.isolate.task import Environment

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterKey:
    """What a starter takes from its settings and its parent process. Starters with equal keys are interchangeable."""

    preload: tuple[str, ...]
    start_method: StartMethod
    environment: frozenset[tuple[str, str]]
    path: tuple[str, ...]
    directory: str
    limits: tuple[tuple[int, int], ...]
    processors: frozenset[int]


@dataclass(slots=True)
class _Keeping:
    """How many starters this process keeps, and which. A forked child of it keeps none."""

    limit: int
    ignored: frozenset[str]
    owner: int = field(default_factory=os.getpid)
    kept: list[StarterHandle] = field(default_factory=list)  # the last used is the last
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: object) -> StarterHandle | None:
        with self.lock:
            at = next((at for at, handle in enumerate(self.kept) if handle.key == key), None)
            return None if at is None else self.kept.pop(at)

    def put(self, handle: StarterHandle) -> list[StarterHandle]:
        """Keep it. Returns those that are too many now."""
        with self.lock:
            self.kept.append(handle)
            surplus = self.kept[: max(0, len(self.kept) - self.limit)]
            del self.kept[: len(surplus)]
        return surplus

    def close(self) -> list[StarterHandle]:
        """Keep nothing from now on. Returns those that were kept."""
        with self.lock:
            self.limit, kept, self.kept = 0, self.kept, []
        return kept


_keeping: _Keeping | None = None


@contextmanager
def keep_starters(limit: int, *, ignored: frozenset[str] = frozenset()) -> Iterator[None]:
    """Keep up to `limit` starters while this context is open; those that are left end with it.

    Each holds what it preloads in memory, as it was on disk at that time. `ignored`: environment variables in which starters may
    differ; workers then see the value of the first. With `limit=0` nothing is kept, also inside another such context. Raises
    ValueError for a negative `limit`.
    """
    global _keeping
    if limit < 0:
        raise ValueError(f"limit={limit}, but should be at least 0")
    before, own = _keeping, _Keeping(limit=limit, ignored=ignored)
    _keeping = own
    try:
        yield
    finally:
        _keeping = before
        if os.getpid() == own.owner:
            _end(own.close())


def obtain(*, number: int, environment: Environment, settings: PoolSettings, directory: Path) -> StarterHandle:
    """A kept starter like the one asked for, or a new one. Raises OSError if no process can be started."""
    keeping = _current()
    key = None if keeping is None else _key_of(settings, environment, keeping.ignored)
    while keeping is not None and (kept := keeping.take(key)) is not None:
        if kept.lend(environment=environment, directory=directory, worker=settings.worker):
            return kept
        _end([kept])
    return StarterHandle(number=number, environment=environment, settings=settings, directory=directory, key=key)


def retire(handles: Sequence[StarterHandle]) -> None:
    """Take the starters that a pool does not need any more: keep each without its workers, or end it."""
    keeping = _current()
    ending: list[StarterHandle] = []
    for handle in handles:
        if keeping is None or keeping.limit == 0 or handle.key is None or not handle.take_back():
            ending.append(handle)
        else:
            ending += keeping.put(handle)
    _end(ending)


def _current() -> _Keeping | None:
    return _keeping if _keeping is not None and _keeping.owner == os.getpid() else None


def _end(handles: Sequence[StarterHandle]) -> None:
    for handle in handles:
        handle.ask_to_stop()
    for handle in handles:
        handle.end()


def _key_of(settings: PoolSettings, environment: Environment, ignored: frozenset[str]) -> StarterKey:
    seen = settings.process_environment(os.environ, environment)
    directory = ""
    with contextlib.suppress(FileNotFoundError):  # of a directory that was removed
        directory = os.getcwd()
    return StarterKey(
        preload=settings.preload,
        start_method=settings.start_method,
        environment=frozenset((name, value) for name, value in seen.items() if name not in ignored),
        path=(sys.executable, *sys.path),
        directory=directory,
        limits=tuple(resource.getrlimit(limit) for limit in _LIMITS),
        processors=frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(),
    )
