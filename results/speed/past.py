"""What earlier runs measured, as a comparison learns the noise of its cases from it: a few numbers of each case, in arrays.

Of a run's processes, noise needs how many there are, their mean, and how far they are spread: their moments. These are made once
for a run, and kept with it (`results.kept_past`), since a comparison reads up to eight earlier runs. How one number is made of a
process depends on all runs of its case (`oracle.costs.centre_for`), so a run has the moments for each way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from oracle.costs import CENTRES, FEWEST_COSTS, Centre, shortest_of
from results.speed.costs import Moments
from results.speed.measured import Measured, One, cold_costs, cpu_costs, memory_costs, speed_costs

Source: TypeAlias = Centre | Literal["compile CPU", "compile wall", "peak memory"]
"""Where costs of a case are from: the ways to take those of its speed, two clocks of compilations, and its memory."""
_SOURCES: Final[tuple[Source, ...]] = (*CENTRES, "compile CPU", "compile wall", "peak memory")
_COUNTED: Final = ("graph_breaks", "recompiles", "kernels")
_SHORTEST: Final = "shortest"  # `oracle.costs.shortest_of` of the speed's costs
_MOMENTS: Final[Mapping[str, float]] = {"count": 0.0, "mean": math.nan, "squares": 0.0}  # with what an absent case has
DEFINITION: Final = 1
"""Of the numbers: to be raised with any change of how a process's costs become one, or of which cases and costs count."""
COLUMNS: Final = (
    _SHORTEST,
    *(f"{source}/{moment}" for source in _SOURCES for moment in _MOMENTS),
    *_COUNTED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One earlier run: numbers of its passing cases."""

    case_ids: Sequence[str]
    numbers: np.ndarray  # [COLUMNS, cases]; NaN for an unknown count and for the mean of no processes

    @classmethod
    def of(cls, measured: Measured) -> PastRun:
        """The numbers of a run, of its measurements."""
        shortest, costs = [], {source: [] for source in _SOURCES}
        for one in measured.values():
            run = speed_costs(one)
            shortest.append(shortest_of((run,)))
            for centre, of_process in CENTRES.items():
                is_meant = centre == "median" or shortest[-1] >= FEWEST_COSTS
                costs[centre].append([of_process(process) for process in run if process] if is_meant else ())
            for source, found in (
                ("compile CPU", cpu_costs(one)),
                ("compile wall", cold_costs(one)),
                ("peak memory", memory_costs(one)),
            ):
                costs[source].append(tuple(itertools.chain.from_iterable(found)))
        moments = [Moments.of(costs[source]) for source in _SOURCES]
        rows = [shortest, *(getattr(of_source, name) for of_source in moments for name in _MOMENTS)]
        rows += [[_number(one, name) for one in measured.values()] for name in _COUNTED]
        return cls(case_ids=tuple(measured), numbers=np.array(rows, dtype=np.float64).reshape(len(COLUMNS), -1))

    def and_of(self, other: PastRun) -> PastRun:
        """The same run with other cases of it."""
        numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        return PastRun(case_ids=(*self.case_ids, *other.case_ids), numbers=numbers)


def _number(one: One, name: str) -> float:
    value = getattr(one, name)
    return math.nan if value is None else value


class Past:
    """Earlier runs of some cases, oldest first."""

    def __init__(self, names: Sequence[str], runs: Sequence[PastRun]) -> None:
        self.row_of = {name: row for row, name in enumerate(names)}
        self._runs = runs
        # [runs, cases]: the place of a case in the arrays of a run; -1 where it is not.
        self._places = np.full((len(runs), len(names)), -1)
        for places, run in zip(self._places, runs, strict=True):
            rows = np.fromiter((self.row_of.get(name, -1) for name in run.case_ids), dtype=np.intp)
            places[rows[rows >= 0]] = np.flatnonzero(rows >= 0)

    def counts(self, name: str, counted: str) -> list[int]:
        """A count of one case in the runs that know it."""
        column, row = COLUMNS.index(counted), self.row_of[name]
        found = [
            run.numbers[column, place]
            for run, place in zip(self._runs, self._places[:, row].tolist(), strict=True)
            if place >= 0
        ]
        return [int(count) for count in found if not math.isnan(count)]

    def shortest(self, names: Sequence[str]) -> np.ndarray:
        """Of each case, the fewest costs of a process of its speed in any of the runs."""
        return self._column(_SHORTEST, self._rows(names), math.inf).min(axis=1, initial=math.inf)

    def moments(self, names: Sequence[str], sources: Sequence[Source]) -> Moments:
        """The moments of these cases, of costs from the source that each has: arrays [cases, runs that have them].

        Runs that have a case are its last columns, as those of a short history are.
        """
        is_there = self._places[:, self._rows(names)].T >= 0
        width = int(is_there.sum(axis=1).max(initial=0))
        last = np.argsort(is_there, axis=1, kind="stable")[:, is_there.shape[1] - width :]
        whole = self.aligned(names, sources)
        count, mean, squares = (
            np.take_along_axis(one, last, axis=1) for one in (whole.count, whole.mean, whole.squares)
        )
        return Moments(count=count, mean=mean, squares=squares)

    def aligned(self, names: Sequence[str], sources: Sequence[Source]) -> Moments:
        """The same in arrays [cases, runs]: without processes where a run has not the case."""
        rows = self._rows(names)
        kinds = {source: np.array([own == source for own in sources], dtype=bool) for source in dict.fromkeys(sources)}
        found = {}
        for moment, nothing in _MOMENTS.items():
            whole = np.full((len(rows), len(self._runs)), nothing)
            for source, is_of_kind in kinds.items():
                whole[is_of_kind] = self._column(f"{source}/{moment}", rows[is_of_kind], nothing)
            found[moment] = whole
        return Moments(count=found["count"].astype(np.int64), mean=found["mean"], squares=found["squares"])

    def aligned_counts(self, names: Sequence[str], counted: str) -> np.ndarray:
        """A count of these cases in each run: an array [cases, runs], NaN where a run does not know it."""
        return self._column(counted, self._rows(names), math.nan)

    def _rows(self, names: Sequence[str]) -> np.ndarray:
        return np.fromiter(map(self.row_of.__getitem__, names), dtype=np.intp, count=len(names))

    def _column(self, name: str, rows: np.ndarray, nothing: float) -> np.ndarray:
        """One number of the cases in these rows: an array [cases, runs]."""
        column = COLUMNS.index(name)
        found = np.full((len(rows), len(self._runs)), nothing)
        for number, (run, places) in enumerate(zip(self._runs, self._places, strict=True)):
            own = places[rows]
            found[own >= 0, number] = run.numbers[column, own[own >= 0]]
        return found
