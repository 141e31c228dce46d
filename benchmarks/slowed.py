"""A compiler that makes programs slower by a known share, for drills of the verdicts on speed.

    torch-oracle sweep --speed --subject 'compile:benchmarks.slowed:slowed[backend=aot_eager,percent=10]'

The compiled function is torch.compile's, and after each call it spends `percent` of the call's own time in an empty loop. That
time is the median of the first calls, and the loop's length is found beforehand, so that no clock is read in a measured call.
With `percent=0` the loop has one turn, so that the wrapper costs the same in runs that are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
import torch._dynamo

_LOOKED_AT = 13  # calls after which the loop's length is set; the first of them compile
_COMPILES = 3  # calls that may compile and do not count
_TURNS = 20_000  # turns of the loop by which one is timed


def slowed(
    fn: Callable[..., Any], *, dynamic: bool | None = None, backend: str = "aot_eager", percent: float = 0.0
) -> Callable[..., Any]:
    """`fn` compiled by torch.compile with a backend, `percent` slower from its `_LOOKED_AT`th call on."""
    compiled = torch.compile(fn, dynamic=dynamic, backend=backend)
    times: list[float] = []
    turns = 1

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal turns
        if len(times) < _LOOKED_AT:
            start = time.process_time()
            result = compiled(*args, **kwargs)
            times.append(time.process_time() - start)
            if len(times) == _LOOKED_AT:
                turns += round(percent / 100 * statistics.median(times[_COMPILES:]) / turn_seconds())
            return result
        result = compiled(*args, **kwargs)
        for _ in repeat(None, turns):
            pass
        return result

    return call


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
