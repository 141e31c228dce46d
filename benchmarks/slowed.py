"""A compiler that makes programs slower by a known share, for drills of the verdicts on speed.

    torch-oracle sweep --speed --subject 'compile:benchmarks.slowed:slowed[backend=aot_eager,percent=10]'

The compiled function is torch.compile's, and after each call it spends `percent` of the call's own time in an empty loop. The
loop's length is set once, by calling the function some times more, so that no clock is read in a measured call. With `percent=0`
the loop has one turn, so that the wrapper costs the same in runs that are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
import torch._dynamo

_WARM = 6  # calls after which the loop's length is set
_BLOCKS = 9  # of calls by which a call is timed; the median counts
_BLOCK_S = 3e-4
_TURNS = 20_000  # turns of the loop by which one is timed


def slowed(
    fn: Callable[..., Any], *, dynamic: bool | None = None, backend: str = "aot_eager", percent: float = 0.0
) -> Callable[..., Any]:
    """`fn` compiled by torch.compile with a backend, `percent` slower from its `_WARM`th call on."""
    compiled = torch.compile(fn, dynamic=dynamic, backend=backend)
    calls, turns = 0, 1

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, turns
        calls += 1
        if calls == _WARM:
            turns += round(percent / 100 * _seconds(lambda: compiled(*args, **kwargs)) / turn_seconds())
        result = compiled(*args, **kwargs)
        for _ in repeat(None, turns):
            pass
        return result

    return call


def _seconds(function: Callable[[], Any]) -> float:
    """Processor seconds of a call, timed in blocks as `oracle.measure` does."""
    start = time.process_time()
    function()
    count = max(1, round(_BLOCK_S / max(1e-7, time.process_time() - start)))
    found = []
    for _ in range(_BLOCKS):
        start = time.process_time()
        for _ in range(count):
            function()
        found.append((time.process_time() - start) / count)
    return statistics.median(found)


def reset() -> None:
    """Forget compiled code: programs of one suite may share a code object, and Dynamo gives up after so many of its variants."""
    torch._dynamo.reset()


setattr(slowed, "reset", reset)  # called before each case, see oracle.subjects.import_path.GivenCompiler


def turn_seconds() -> float:
    """Seconds that one turn of an empty loop takes: the smallest of nine measurements."""
    return min(_loop_seconds(_TURNS) for _ in range(9)) / _TURNS


def _loop_seconds(turns: int) -> float:
    start = time.process_time()
    for _ in repeat(None, turns):
        pass
    return time.process_time() - start
