"""Measure speed and memory of two callables against each other in one process, with confidence intervals.

Eager and compiled calls are interleaved in pairs whose order alternates, so that a machine that slows down slows both. The
speedup is the median of the pairs' ratios; its confidence interval is a bootstrap over pairs.
"""

from __future__ import annotations

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

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.speedup_low <= 1.0 <= self.speedup_high


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
