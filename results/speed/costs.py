"""The costs of all cases of a comparison as arrays, so that noise and verdicts are computed for all of them at once.

A row is a case. A column is a run: earlier ones, oldest first, then base, then head. Only what verdicts need of a run is kept:
how many processes measured it, the mean of their centres, and how far these are spread around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.costs import CENTRES, Centre, Run, centre_for, shortest_of
from results.speed.samples import SpeedCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of measured runs: how many processes measured each, the mean of their centres, and how far these are spread around it."""

    count: np.ndarray
    mean: np.ndarray  # NaN for no processes
    squares: np.ndarray  # sum of the squares of the distances from the mean

    @classmethod
    def of(cls, runs: Sequence[Sequence[float]]) -> Moments:
        """The moments of runs, each with one number of each process. Numbers that are not finite are left out."""
        flat = np.fromiter((cost for run in runs for cost in run), dtype=np.float64)
        place = np.repeat(np.arange(len(runs)), list(map(len, runs)))
        is_known = np.isfinite(flat)
        flat, place = flat[is_known], place[is_known]
        # Sorted, since the means of the same costs must be equal whatever their order: they are ties of the sign test.
        order = np.lexsort((flat, place))
        count = np.bincount(place, minlength=len(runs))
        with np.errstate(invalid="ignore"):
            mean = np.bincount(place, weights=flat[order], minlength=len(runs)) / count
        squares = np.bincount(place, weights=(flat - mean[place]) ** 2, minlength=len(runs))
        return cls(count=count, mean=mean, squares=squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCosts:
    """Earlier runs of the cases of a table, of which only moments are known; they are before those of `SpeedCase.history`."""

    shortest: Sequence[float]  # of each case: the fewest costs of a process in any of them
    moments: Callable[[Sequence[Centre]], Moments]  # arrays [cases, runs], for the way of each case to take a process


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """The measured runs of each case. Arrays are [cases, runs]; the last two columns are base and head."""

    names: tuple[str, ...]
    classes: tuple[str, ...]  # SpeedCase.noise_class
    count: np.ndarray  # processes that measured the run
    mean: np.ndarray  # of their centres; NaN for none
    squares: np.ndarray  # sum of the squares of their distances from the mean

    @classmethod
    def of(cls, cases: Mapping[str, SpeedCase], past: PastCosts | None = None) -> CostTable:
        """The table of these cases; those with a short history have empty runs before it."""
        width = 2 + max((len(case.history) for case in cases.values()), default=0)
        runs: list[Sequence[float]] = []
        centres: list[Centre] = []
        for row, case in enumerate(cases.values()):
            measured: tuple[Run, ...] = (*case.history, case.base, case.head)
            runs.extend(() for _ in range(width - len(measured)))
            shortest = shortest_of(measured) if case.noise_class else 0
            name = centre_for(min(shortest, past.shortest[row]) if past else shortest, case.noise_class)
            centre = CENTRES[name]
            centres.append(name)
            for run in measured:
                runs.append([p[0] if len(p) == 1 else centre(p) for p in run if p])
        flat = Moments.of(runs)
        found = [array.reshape(len(cases), width) for array in (flat.count, flat.mean, flat.squares)]
        if past is not None and cases:
            earlier = past.moments(centres)
            both = zip((earlier.count, earlier.mean, earlier.squares), found, strict=True)
            found = [np.concatenate(arrays, axis=1) for arrays in both]
        count, mean, squares = found
        return cls(
            names=tuple(cases),
            classes=tuple(case.noise_class for case in cases.values()),
            count=count,
            mean=mean,
            squares=squares,
        )

    @property
    def difference(self) -> np.ndarray:
        """Head's mean minus base's; NaN where one was not measured."""
        return self.mean[:, -1] - self.mean[:, -2]

    @property
    def units(self) -> np.ndarray:
        """The variance of the difference of head and base if a process had variance 1; infinite where one was not measured."""
        return _units(self.count[:, -2], self.count[:, -1])

    def past_changes(self) -> np.ndarray:
        """The square of each change between successive measured runs up to base, divided by its `units`.

        An array [cases, runs - 2], NaN where there is no change to speak of.
        """
        found = np.full((len(self.names), max(0, self.count.shape[1] - 2)), np.nan)
        mean, count = self.mean[:, 0], self.count[:, 0]  # of the last measured run
        for column in range(1, self.count.shape[1] - 1):
            new_mean, new_count = self.mean[:, column], self.count[:, column]
            with np.errstate(invalid="ignore"):
                change = (new_mean - mean) ** 2 / _units(count, new_count)
            both = (count > 0) & (new_count > 0)
            found[both, column - 1] = change[both]
            mean, count = np.where(new_count > 0, new_mean, mean), np.where(new_count > 0, new_count, count)
        return found


def _units(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 1 / old + 1 / new
