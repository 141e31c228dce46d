"""Makes of records what verdicts are about: the costs of each case that passed and was measured, quantity by quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean
from typing import Final, Literal, NamedTuple, TypeAlias

from oracle.costs import Run, duration_class
from oracle.records import Measurements
from results.speed.counts import judge_count
from results.speed.noise import ASSUMED, Variance
from results.speed.samples import SpeedCase, centres, log_costs
from results.speed.verdicts import Judgement, SpeedVerdict, Verdicts, Word, judge_speed

Quantity: TypeAlias = Literal["speed", "compile time", "peak memory"]
Count: TypeAlias = Literal["graph breaks", "recompiles", "kernels"]


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

LEAST: Final[Mapping[Quantity, float]] = {
    "speed": math.log(1.03),
    "compile time": math.log(1.10),
    "peak memory": math.log(1.05),
}
"""Logarithms of the smallest ratios that are reported. Compilations and allocators vary for reasons of their own."""
RESOLUTION: Final[Mapping[Quantity, float]] = {
    "speed": math.log(1.10),
    "compile time": math.log(1.25),
    "peak memory": math.log(1.10),
}
"""Logarithms of the largest ratios that the verdict "same" does not exclude."""
COUNTS: Final[Mapping[Count, str]] = {"graph breaks": "graph_breaks", "recompiles": "recompiles", "kernels": "kernels"}
_ASSUMED: Final[Mapping[Quantity, Variance]] = {"compile time": Variance(value=0.25**2, freedom=4.0)}
_LEAST_BYTES: Final = 1 << 20  # peaks below are the allocator's
LEAST_SECONDS: Final = 0.05  # changes of a compile time below are nobody's concern


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """All verdicts of a comparison: of each quantity and of each count, by case id. Cases measured in neither run have none."""

    quantities: Mapping[Quantity, Judgement]
    counts: Mapping[Count, Verdicts]


def judge_measurements(base: Measured, head: Measured, history: Sequence[Measured] = ()) -> Judgements:
    """The verdicts on two runs. `history`: earlier runs, oldest first, without base."""
    names = [name for name in base if name in head]
    quantities: dict[Quantity, Judgement] = {}
    for quantity, least in LEAST.items():
        cases = _cases(quantity, names, base, head, history)
        judged = judge_speed(
            cases, least=least, resolution=RESOLUTION[quantity], assumed=_ASSUMED.get(quantity, ASSUMED)
        )
        if quantity == "compile time":
            judged = judged.with_changed(lambda name, verdict, of=cases: _with_least_seconds(verdict, of[name]))
        quantities[quantity] = judged
    counts: dict[Count, Verdicts] = {count: _count_verdicts(count, names, base, head, history) for count in COUNTS}
    return Judgements(quantities=quantities, counts=counts)


def _count_verdicts(
    count: Count, names: Sequence[str], base: Measured, head: Measured, history: Sequence[Measured]
) -> Verdicts:
    counted = attrgetter(COUNTS[count])

    def judged(name: str) -> SpeedVerdict:
        past = [counted(run[name]) for run in history if name in run]
        return judge_count(counted(base[name]), counted(head[name]), past)

    words: dict[str, Word] = {}
    for name in names:
        old, new = counted(base[name]), counted(head[name])
        if old is not None or new is not None:
            words[name] = Word.SAME if old == new else judged(name).word
    return Verdicts(words, lambda name, _: judged(name))


def _cases(
    quantity: Quantity, names: Sequence[str], base: Measured, head: Measured, history: Sequence[Measured]
) -> dict[str, SpeedCase]:
    """The measurements of a quantity of each case that either run measured."""
    is_speed = quantity == "speed"
    found: dict[str, SpeedCase] = {}
    for name in names:
        old, new = base[name], head[name]
        costs = _costs_of(quantity, old, new)
        base_costs, head_costs = costs(old), costs(new)
        if base_costs or head_costs:
            found[name] = SpeedCase(
                base=base_costs,
                head=head_costs,
                history=tuple([costs(run[name]) for run in history if name in run]) if history else (),
                noise_class=duration_class(old.subject_s) if is_speed else "",
                base_code=old.code if is_speed else None,
                head_code=new.code if is_speed else None,
            )
    return found


_One: TypeAlias = Measurements | MeasuredCase


def _costs_of(quantity: Quantity, old: _One, new: _One) -> Callable[[_One], Run]:
    match quantity:
        case "speed":
            return _speed
        case "compile time":
            # Seconds of one clock only: runs with one process have measured wall time.
            return _compilation if old.compile_cpu_s and new.compile_cpu_s else _old_compilation
        case "peak memory":
            return _memory


def _speed(measured: _One) -> Run:
    """The costs of a run, or the one that a run of an older version has."""
    return measured.costs or log_costs([1 / measured.speedup if measured.speedup else None])


def _compilation(measured: _One) -> Run:
    return log_costs(measured.compile_cpu_s)


def _old_compilation(measured: _One) -> Run:
    seconds = measured.compile_cold_s
    return ((math.log(seconds),),) if seconds is not None and 0 < seconds < math.inf else ()


def _memory(measured: _One) -> Run:
    if not measured.peak_memories:
        return ()
    return log_costs([peak if peak >= _LEAST_BYTES else None for peak in measured.peak_memories])


def _with_least_seconds(verdict: SpeedVerdict, case: SpeedCase) -> SpeedVerdict:
    """The verdict on a compile time, which is the same if it changed by a moment only."""
    base, head = centres(case.base), centres(case.head)
    if not verdict.word.is_change or abs(math.exp(fmean(head)) - math.exp(fmean(base))) >= LEAST_SECONDS:
        return verdict
    return replace(verdict, word=Word.SAME, reason=f"{verdict.reason}, but less than {LEAST_SECONDS} s")
