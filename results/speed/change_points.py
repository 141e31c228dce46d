"""Finds the runs of a history at which a case's cost changed and stayed changed: change points.

The search is that of `ruptures` (PELT with squared errors): it cuts the history where the sum of squares around the segments'
means falls by more than a penalty. The penalty comes from the noise between runs: a quiet case is cut at small changes, and
a noisy one is not cut at all. A change counts from its second run on: one odd run is none.

`histories` takes all cases together, so that a case with a short history borrows its noise from the others.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import ruptures

from oracle.costs import Run
from results.speed.costs import CostTable
from results.speed.noise import ASSUMED, Variance, learn_noise
from results.speed.samples import SpeedCase
from results.speed.verdicts import LEAST

_SHORTEST: Final = 2  # runs of a segment
_FEWEST: Final = 5  # runs of a history; shorter ones have no change points
_PENALTY: Final = 4.0  # times the noise's variance and the logarithm of the number of runs
_FAR: Final = 6.0  # standard deviations from both neighbours: one odd run, which is moved to its nearer neighbour
_NORMAL: Final = 1.4826  # standard deviations in a median absolute deviation of normal numbers
_RAISED: Final = 3.0  # divided by the number of differences
_SMALLEST: Final = 0.002  # noise of a run: rounded figures make smaller ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A lasting change of one case's cost."""

    index: int  # of the first run that has the new cost
    effect: float  # ratio of costs after and before: 1.1 is 10 % slower, longer or more
    before: int  # number of runs with the old cost, and with the new one
    after: int

    @property
    def is_worse(self) -> bool:
        return self.effect > 1


def change_points(
    costs: Sequence[float], *, noise: float | None = None, least: float = LEAST
) -> tuple[ChangePoint, ...]:
    """The change points of a history, oldest first.

    `costs`: natural logarithms, one a run, oldest first, all finite. `noise`: standard deviation of one run's cost, for example
    from `noise.learn_noise`; None: from successive differences. `least`: logarithm of the smallest ratio that counts.
    """
    if len(costs) < _FEWEST:
        return ()
    spread = max(_SMALLEST, noise_of(costs) if noise is None else noise)
    signal = _without_odd_runs(costs, spread)
    search: Any = ruptures.Pelt(model="l2", min_size=_SHORTEST, jump=1)
    ends: list[int] = search.fit(signal.reshape(-1, 1)).predict(
        pen=_penalty(spread, len(costs))
    )  # the last is the length
    return _described(signal, _merged(signal, [0, *ends], least))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHistory:
    """One case in all runs that measured it."""

    runs: tuple[int, ...]  # positions of these runs among all
    costs: tuple[float, ...]  # one for each, natural logarithms
    noise: float  # standard deviation of one
    points: tuple[ChangePoint, ...]  # their `index` is a position in `costs`


def histories(cases: Mapping[str, Sequence[Run]], *, least: float = LEAST) -> dict[str, CaseHistory]:
    """The histories of all cases of one quantity. Each case has one `Run` for each run, oldest first; empty: not measured."""
    past = {name: SpeedCase(history=runs[:-1], base=runs[-1] if runs else (), head=()) for name, runs in cases.items()}
    table = CostTable.of(past)
    found = histories_of(table, least=least)
    absent = {
        name: table.count.shape[1] - 1 - len(runs) for name, runs in cases.items()
    }  # columns before the first run
    return {name: replace(one, runs=tuple(number - absent[name] for number in one.runs)) for name, one in found.items()}


def histories_of(
    table: CostTable, *, least: float = LEAST, assumed: Variance = ASSUMED, is_alone: bool = False
) -> dict[str, CaseHistory]:
    """The histories of the cases of a table, whose last column, head, has nothing measured.

    `is_alone`: the cases are too few to tell how much runs differ from each other for no reason, which processes of one run do
    not show. So the noise of a case is no less than its own successive differences make it.
    """
    variances = learn_noise(table, assumed).by_case.value.tolist()
    found = {}
    for name, count, mean, variance in zip(table.names, table.count, table.mean, variances, strict=True):
        measured = np.flatnonzero(count)
        spread = math.sqrt(variance / float(np.median(count[measured]))) if len(measured) else 0.0
        costs = tuple(mean[measured].tolist())
        spread = max(spread, noise_of(costs)) if is_alone else spread
        is_steady = _squares(mean[measured]) <= _penalty(
            spread, len(costs)
        )  # no cut gains more: no need to look for one
        found[name] = CaseHistory(
            runs=tuple(measured.tolist()),
            costs=costs,
            noise=spread,
            points=() if is_steady else change_points(costs, noise=spread, least=least),
        )
    return found


def _squares(costs: np.ndarray) -> float:
    """The sum of squares around the mean."""
    return float(((costs - costs.mean()) ** 2).sum()) if len(costs) else 0.0


def _penalty(spread: float, runs: int) -> float:
    return _PENALTY * max(_SMALLEST, spread) ** 2 * math.log(max(2, runs))


def noise_of(costs: Sequence[float]) -> float:
    """The standard deviation of one run, from the median of successive differences, which a few changes hardly move.

    A short history may show less noise than it has, so its estimate is raised.
    """
    differences = np.abs(np.diff(np.asarray(costs, dtype=np.float64)))
    raised = 1 + _RAISED / max(1, differences.size)
    return float(np.median(differences)) * raised * _NORMAL / math.sqrt(2) if differences.size else 0.0


def _without_odd_runs(costs: Sequence[float], spread: float) -> np.ndarray:
    signal = np.array(costs, dtype=np.float64)
    for i in range(1, len(costs) - 1):
        distances = costs[i - 1] - costs[i], costs[i + 1] - costs[i]
        nearer = min(distances, key=abs)
        if abs(nearer) > _FAR * spread and distances[0] * distances[1] > 0:
            signal[i] = costs[i] + nearer
    return signal


def _merged(signal: np.ndarray, bounds: list[int], least: float) -> list[int]:
    """The bounds of segments, without those at which the mean changes by less than `least`, the smallest change first."""
    while len(bounds) > 2:
        means = [float(signal[start:end].mean()) for start, end in itertools.pairwise(bounds)]
        steps = [abs(after - before) for before, after in itertools.pairwise(means)]
        if min(steps) >= least:
            break
        del bounds[1 + steps.index(min(steps))]
    return bounds


def _described(signal: np.ndarray, bounds: Sequence[int]) -> tuple[ChangePoint, ...]:
    found = []
    for start, middle, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
        change = statistics.fmean(signal[middle:end]) - statistics.fmean(signal[start:middle])
        found.append(ChangePoint(index=middle, effect=math.exp(change), before=middle - start, after=end - middle))
    return tuple(found)
