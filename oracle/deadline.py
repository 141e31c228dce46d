"""A moment at which a run of the worker pool ends, whatever its workers are doing. Torch-free."""

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

    What a loop over them waits for is killed then, and the loop ends as if nothing were left. A long case cannot hold a
    run up: a limit that was looked at between two results only would wait for it.
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


def is_over(deadline: float | None) -> bool:
    """Whether the moment has come."""
    return deadline is not None and time.monotonic() >= deadline
