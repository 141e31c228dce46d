"""Makes of records what verdicts are about: the costs of each case that passed and was measured, quantity by quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean
from typing import Final, Literal, TypeAlias

from oracle.costs import Centre, Run, duration_class
from results.speed.costs import PastCosts
from results.speed.counts import judge_count
from results.speed.measured import Measured, One, cold_costs, cpu_costs, memory_costs, speed_costs
from results.speed.noise import ASSUMED, Variance
from results.speed.past import Past, PastRun, Source
from results.speed.samples import SpeedCase, centres
from results.speed.verdicts import Judgement, SpeedVerdict, Verdicts, Word, judge_speed

Quantity: TypeAlias = Literal["speed", "compile time", "peak memory"]
Count: TypeAlias = Literal["graph breaks", "recompiles", "kernels"]


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
ASSUMED_NOISE: Final[Mapping[Quantity, Variance]] = {"compile time": Variance(value=0.25**2, freedom=4.0)}
LEAST_SECONDS: Final = 0.05  # changes of a compile time below are nobody's concern


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """All verdicts of a comparison: of each quantity and of each count, by case id. Cases measured in neither run have none."""

    quantities: Mapping[Quantity, Judgement]
    counts: Mapping[Count, Verdicts]


def judge_measurements(base: Measured, head: Measured, history: Sequence[PastRun] = ()) -> Judgements:
    """The verdicts on two runs. `history`: earlier runs, oldest first, without base."""
    names = [name for name in base if name in head]
    past = Past(names, history)
    quantities: dict[Quantity, Judgement] = {}
    for quantity, least in LEAST.items():
        cases = _cases(quantity, names, base, head)
        judged = judge_speed(
            cases,
            least=least,
            resolution=RESOLUTION[quantity],
            assumed=ASSUMED_NOISE.get(quantity, ASSUMED),
            past=_past_costs(quantity, tuple(cases), base, head, past) if history else None,
        )
        if quantity == "compile time":
            judged = judged.with_changed(lambda name, verdict, of=cases: _with_least_seconds(verdict, of[name]))
        quantities[quantity] = judged
    counts: dict[Count, Verdicts] = {count: _count_verdicts(count, names, base, head, past) for count in COUNTS}
    return Judgements(quantities=quantities, counts=counts)


def _count_verdicts(count: Count, names: Sequence[str], base: Measured, head: Measured, earlier: Past) -> Verdicts:
    counted = attrgetter(COUNTS[count])

    def judged(name: str) -> SpeedVerdict:
        return judge_count(counted(base[name]), counted(head[name]), earlier.counts(name, COUNTS[count]))

    words: dict[str, Word] = {}
    for name in names:
        old, new = counted(base[name]), counted(head[name])
        if old is not None or new is not None:
            words[name] = Word.SAME if old == new else judged(name).word
    return Verdicts(words, lambda name, _: judged(name))


def _cases(quantity: Quantity, names: Sequence[str], base: Measured, head: Measured) -> dict[str, SpeedCase]:
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
                noise_class=duration_class(old.subject_s) if is_speed else "",
                base_code=old.code if is_speed else None,
                head_code=new.code if is_speed else None,
            )
    return found


def _past_costs(quantity: Quantity, names: Sequence[str], base: Measured, head: Measured, past: Past) -> PastCosts:
    """What earlier runs tell of a quantity of these cases."""

    def sources(centres: Sequence[Centre]) -> Sequence[Source]:
        match quantity:
            case "speed":
                return centres
            case "compile time":
                clocks: tuple[Source, Source] = ("compile wall", "compile CPU")
                return [clocks[_has_cpu_seconds(base[name], head[name])] for name in names]
            case "peak memory":
                return ["peak memory" for _ in names]

    shortest = past.shortest(names).tolist() if quantity == "speed" else [math.inf] * len(names)
    return PastCosts(shortest=shortest, moments=lambda centres: past.moments(names, sources(centres)))


def _costs_of(quantity: Quantity, old: One, new: One) -> Callable[[One], Run]:
    match quantity:
        case "speed":
            return speed_costs
        case "compile time":
            return cpu_costs if _has_cpu_seconds(old, new) else cold_costs
        case "peak memory":
            return memory_costs


def _has_cpu_seconds(old: One, new: One) -> bool:
    """Whether both runs measured processor time of compilations. Runs with one process have measured wall time."""
    return bool(old.compile_cpu_s and new.compile_cpu_s)


def _with_least_seconds(verdict: SpeedVerdict, case: SpeedCase) -> SpeedVerdict:
    """The verdict on a compile time, which is the same if it changed by a moment only."""
    base, head = centres(case.base), centres(case.head)
    if not verdict.word.is_change or abs(math.exp(fmean(head)) - math.exp(fmean(base))) >= LEAST_SECONDS:
        return verdict
    return replace(verdict, word=Word.SAME, reason=f"{verdict.reason}, but less than {LEAST_SECONDS} s")
