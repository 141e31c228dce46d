"""Measure speed and memory of two callables against each other in one process, with confidence intervals.

Eager and compiled calls are interleaved in pairs whose order alternates, so that a machine that slows down slows both. The
speedup is the median of the pairs' ratios; its confidence interval is a bootstrap over pairs. It tells nothing of how much
another process would differ (`results.speed`).
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

_RESAMPLES = 1000
_CLEAR_PEAK = "5"  # written to /proc/self/clear_refs, it resets VmHWM; see proc(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Times in seconds. `speedup` is eager's time over the subject's: above 1 the subject is faster."""

    eager_s: float  # median
    subject_s: float  # median
    speedup: float  # median of eager_i / subject_i over the pairs
    speedup_low: float  # 95 % confidence interval of that median
    speedup_high: float
    repeats: int  # pairs measured


def interleaved(
    eager: Callable[[], Any],
    compiled: Callable[[], Any],
    *,
    budget_s: float = 1.0,
    max_pairs: int = 50,
    min_pairs: int = 3,
    sync: Callable[[], Any] | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Call both in turn for about `budget_s` seconds, at least `min_pairs` and at most `max_pairs` times.

    Both must be warmed up. `sync` waits for the device and is measured as part of each call. Exceptions propagate.
    """
    if max_pairs < 1 or min_pairs < 1 or max_pairs < min_pairs:
        raise ValueError(f"pairs from {min_pairs} to {max_pairs}: expected 1 <= min_pairs <= max_pairs")
    wait = sync or _nothing
    eager_times: list[float] = []
    compiled_times: list[float] = []
    deadline = clock() + budget_s
    wait()
    while len(eager_times) < max_pairs and (len(eager_times) < min_pairs or clock() < deadline):
        pair = [(eager, eager_times), (compiled, compiled_times)]
        if len(eager_times) % 2:
            pair.reverse()
        for function, times in pair:
            times.append(_time_once(function, wait, clock))
    return summarise(eager_times, compiled_times, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Times of blocks of calls, measured in pairs. All lists have one number for each pair, in seconds of one call."""

    eager_wall_s: tuple[float, ...]
    subject_wall_s: tuple[float, ...]
    costs: tuple[float, ...]  # natural logarithm of the subject's time over eager's, by the steadier clock
    calls: int  # of each in a block

    def compact(self, most: int = 9) -> tuple[float, ...]:
        """At most `most` costs: medians of successive pairs, rounded to 0.01 %."""
        count = min(most, len(self.costs))
        return tuple(round(float(np.median(part)), 4) for part in np.array_split(self.costs, count)) if count else ()


_BLOCK_S = 3e-4
"""A block has as many calls as take so long: shorter ones measure the clock, longer ones are interrupted more often."""
_MOST_WARM_UP = 20
MOST_BUDGETS = 6
"""How much longer than the budget a process is timed, as a factor, to get enough pairs of long calls."""


def paired_blocks(
    eager: Callable[[], Any],
    compiled: Callable[[], Any],
    *,
    budget_s: float,
    sync: Callable[[], Any] | None = None,
    is_alone: bool = False,
    most_pairs: int = 1000,
    enough_pairs: int = 100,
    least_pairs: int = 3,
) -> Pairs:
    """Call both in turn for about `budget_s` seconds, in blocks, at least `least_pairs` times. Both are warmed up here.

    It takes up to MOST_BUDGETS times as long for `enough_pairs`: a few pairs of long calls say little, and it took longer to
    start the process.

    With `is_alone` a call computes in one thread of this process only, and the costs are by processor time, from which other
    processes take nothing. A block in which the process gave up the processor by itself, as it does to sleep or to wait for a
    lock, counts by wall time.
    """
    wait = sync or _nothing
    one_s = max(_warmed_up(eager, wait, budget_s), _warmed_up(compiled, wait, budget_s))
    calls = max(1, round(_BLOCK_S / one_s))
    blocks: tuple[list[_Block], list[_Block]] = ([], [])
    started = time.perf_counter()
    while (count := len(blocks[0])) < most_pairs:
        budgets = (time.perf_counter() - started) / budget_s if budget_s else math.inf
        if count >= least_pairs and budgets >= (1 if count >= enough_pairs else MOST_BUDGETS):
            break
        pair = [(eager, blocks[0]), (compiled, blocks[1])]
        for function, found in reversed(pair) if count % 2 else pair:
            found.append(_timed_block(function, wait, calls))
    steady = [
        math.log(theirs.steady_s / own.steady_s) if is_alone else math.log(theirs.wall_s / own.wall_s)
        for own, theirs in zip(*blocks, strict=True)
    ]
    return Pairs(
        eager_wall_s=tuple(block.wall_s / calls for block in blocks[0]),
        subject_wall_s=tuple(block.wall_s / calls for block in blocks[1]),
        costs=tuple(steady),
        calls=calls,
    )


@dataclass(frozen=True, slots=True)
class _Block:
    wall_s: float
    steady_s: float  # processor time, or wall time if the process waited


def _timed_block(function: Callable[[], Any], wait: Callable[[], Any], calls: int) -> _Block:
    before, wall, processor = _waits(), time.perf_counter(), time.process_time()
    result = None
    for _ in range(calls):
        result = function()
    wait()
    processor_s, wall_s = time.process_time() - processor, time.perf_counter() - wall
    has_waited = _waits() != before
    del result  # freed outside of the measured time
    return _Block(max(wall_s, 1e-9), max(wall_s if has_waited else processor_s, 1e-9))


def _waits() -> int:
    """How often this process gave up the processor by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _warmed_up(function: Callable[[], Any], wait: Callable[[], Any], budget_s: float) -> float:
    """Call the function some times, for at most a fifth of the budget. Returns the seconds of a call, the smallest seen."""
    times: list[float] = []
    deadline = time.perf_counter() + budget_s / 5
    while len(times) < _MOST_WARM_UP and (len(times) < 2 or time.perf_counter() < deadline):
        times.append(_time_once(function, wait, time.perf_counter))
    return min(times)


def summarise(eager_times: list[float], compiled_times: list[float], *, seed: int = 0) -> Speed:
    """The medians of times measured in pairs, and the speedup with its interval."""
    ratios = np.asarray(eager_times) / np.asarray(compiled_times)
    low, high = _bootstrap_median(ratios, seed)
    return Speed(
        eager_s=float(np.median(eager_times)),
        subject_s=float(np.median(compiled_times)),
        speedup=float(np.median(ratios)),
        speedup_low=low,
        speedup_high=high,
        repeats=len(eager_times),
    )


def peak_memory(fn: Callable[[], Any], *, device: str = "cpu") -> int | None:
    """Bytes that one call of `fn` adds at its peak to the memory in use before. None if that cannot be measured.

    CUDA: memory of torch's allocator. CPU: resident memory of the process. Blocks that the allocator kept from earlier calls are
    reused without being counted, so small CPU figures are lower bounds.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        fn()
        torch.cuda.synchronize(device)
        return max(0, torch.cuda.max_memory_allocated(device) - before)
    if _reset_peak():
        before = _status_bytes("VmRSS")
        fn()
        after = _status_bytes("VmHWM")
        return None if before is None or after is None else max(0, after - before)
    if sys.platform == "linux":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fn()
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return growth * 1024 if growth > 0 else None  # unknown if the old peak was not exceeded
    fn()
    return None


def synchronizer(device: str) -> Callable[[], None] | None:
    """The `sync` argument of `interleaved` for a device; None if calls are synchronous."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return None


def _nothing() -> None:
    return None


def _time_once(function: Callable[[], Any], wait: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    result = function()
    wait()
    elapsed = clock() - start
    del result  # freed outside of the measured time, and before the next call
    return max(elapsed, 1e-9)  # not zero, so that ratios exist


def _bootstrap_median(ratios: np.ndarray, seed: int) -> tuple[float, float]:
    generator = np.random.Generator(np.random.PCG64(seed))  # measuring must not draw from the global one
    picks = generator.integers(0, len(ratios), size=(_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK, encoding="ascii")
    except OSError:  # not Linux, or a kernel or sandbox without it
        return False
    return True


def _status_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
