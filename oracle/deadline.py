"""End a run of the worker pool at a deadline, whatever its workers are doing. Does not import torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> object: ...


Results = TypeVar("Results", bound=_Closable)


@contextmanager
def closed_at(deadline: float | None, results: Results) -> Iterator[Results]:
    """Close `results` (of `Pool.run`) at `deadline`, seconds of `time.monotonic()`; None: never.

    Running cases are killed then, and a loop over the results ends as if none were left. A check between two results would not
    do: it would wait for a long case.
    """
    if deadline is None:
        yield results
        return
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), results.close)
    timer.daemon = True
    timer.start()
    try:
        yield results
    finally:
        timer.cancel()
        timer.join()  # a close that has begun ends first: the loop may have ended before it, and the pool is busy until then


def is_over(deadline: float | None) -> bool:
    """Whether the deadline has passed."""
    return deadline is not None and time.monotonic() >= deadline
