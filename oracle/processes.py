"""Makes one result of the measurements of a case in several processes. Does not import torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from oracle.records import Measurements

_CONFIDENCE = 0.95


def together(judged: Measurements, again: Sequence[Measurements]) -> Measurements:
    """The measurements of the process that judged the case, with what the others measured in place of its own.

    Judging leaves a process with caches and memory of many other calls: it measured small operators 2 to 3 % slower than fresh
    processes do. Times are medians over the others. The speedup is the geometric mean of their speedups, with a t interval over
    processes, which also covers how much processes differ. `repeats` counts the pairs of all.
    """
    timed = [one for one in again if one.eager_s and one.subject_s]
    if not timed or judged.speedup is None:
        return judged
    logs = [math.log(one.eager_s / one.subject_s) for one in timed if one.eager_s and one.subject_s]
    middle, half = statistics.fmean(logs), _half_width(logs)
    codes = {one.code for one in (judged, *again)}
    return dataclasses.replace(
        judged,
        eager_s=statistics.median(one.eager_s for one in timed if one.eager_s is not None),
        subject_s=statistics.median(one.subject_s for one in timed if one.subject_s is not None),
        speedup=math.exp(middle),
        speedup_low=math.exp(middle - half) if len(logs) > 1 else None,
        speedup_high=math.exp(middle + half) if len(logs) > 1 else None,
        repeats=sum(one.repeats or 0 for one in timed),
        costs=tuple(cost for one in again for cost in one.costs),
        compile_cpu_s=tuple(seconds for one in again for seconds in one.compile_cpu_s),
        peak_memories=tuple(memory for one in again for memory in one.peak_memories),
        code=judged.code if len(codes) == 1 else None,
    )


def _half_width(logs: Sequence[float]) -> float:
    if len(logs) < 2:
        return 0.0
    import scipy.special  # noqa: PLC0415 - takes a tenth of a second, and a run without speed needs none of it

    factor = float(scipy.special.stdtrit(len(logs) - 1, (1 + _CONFIDENCE) / 2))
    return factor * statistics.stdev(logs) / math.sqrt(len(logs))
