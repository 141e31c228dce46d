"""The measurements of a case that verdicts need, and the costs that they are for each quantity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from oracle.costs import Run
from oracle.records import Measurements
from results.speed.samples import log_costs

_LEAST_BYTES: Final = 1 << 20  # peaks below are the allocator's


class MeasuredCase(NamedTuple):
    """The fields of `Measurements` that verdicts need. A tuple, since a comparison makes one of each case of two runs."""

    subject_s: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    compile_cold_s: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None
    costs: Sequence[Sequence[float]] = ()
    compile_cpu_s: Sequence[float] = ()
    peak_memories: Sequence[int] = ()
    code: str | None = None

    @classmethod
    def of(cls, measured: Measurements) -> MeasuredCase:
        return cls(*(getattr(measured, name) for name in cls._fields))


Measured: TypeAlias = Mapping[str, Measurements | MeasuredCase]
"""The measurements of one run's passing cases, by case id."""
One: TypeAlias = Measurements | MeasuredCase


def speed_costs(measured: One) -> Run:
    """The costs of a run, or the one that a run of an older version has."""
    return measured.costs or log_costs([1 / measured.speedup if measured.speedup else None])


def cpu_costs(measured: One) -> Run:
    return log_costs(measured.compile_cpu_s)


def cold_costs(measured: One) -> Run:
    seconds = measured.compile_cold_s
    return ((math.log(seconds),),) if seconds is not None and 0 < seconds < math.inf else ()


def memory_costs(measured: One) -> Run:
    if not measured.peak_memories:
        return ()
    return log_costs([peak if peak >= _LEAST_BYTES else None for peak in measured.peak_memories])
