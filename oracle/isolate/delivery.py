"""The queue of results from the supervisor thread to the consumer, which may be slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from oracle.isolate.task import TaskResult


class Delivery:
    """A queue of results. When it is full it still accepts results, but the supervisor starts no more tasks."""

    def __init__(self, *, max_results: int, max_bytes: int, on_room: Callable[[], None]) -> None:
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._results: deque[tuple[TaskResult, int]] = deque()
        self._bytes = 0
        self._was_full = False
        self._is_closed = False
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def put(self, result: TaskResult, size: int) -> None:
        with self._changed:
            self._results.append((result, size))
            self._bytes += size
            self._changed.notify()

    def is_full(self) -> bool:
        """Whether no task should be started; if so, `on_room` is called when that changes."""
        with self._changed:
            self._was_full = self._is_over()
            return self._was_full

    def close(self, error: Exception | None = None) -> None:
        """End the queue: the consumer gets the remaining results, then `error`."""
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._error = error
            self._changed.notify_all()

    def take(self) -> TaskResult | None:
        """The next result; None at the end. Waits, and can be interrupted by Ctrl-C."""
        with self._changed:
            while not self._results and not self._is_closed:
                self._changed.wait()
            if not self._results:
                if self._error is not None:
                    raise self._error
                return None
            result, size = self._results.popleft()
            self._bytes -= size
            has_room_again = self._was_full and not self._is_over()
            if has_room_again:
                self._was_full = False
        if has_room_again:
            self._on_room()
        return result

    def _is_over(self) -> bool:
        return len(self._results) >= self._max_results or self._bytes >= self._max_bytes
