"""Makes one number of the costs that a process measured, and says whether several processes tell a case's cost precisely enough.

A cost is the natural logarithm of the subject's time over eager's. Blocks timed within one process share its memory layout, its
hash seed and whatever else ran on the machine just then, so a hundred of them say little more than one number. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Process: TypeAlias = Sequence[float]
"""Costs of the blocks of calls that were timed in one process, in order."""
Run: TypeAlias = Sequence[Process]
"""One run's processes."""
FEWEST_COSTS: Final = 6  # of a process, of which the lowest third are two
_SHORT: Final = "under 0.1 ms"
_PRIOR_FREEDOM: Final = 4.0  # processes that the noise of the other cases counts as


def duration_class(seconds: float | None) -> str:
    """The class of a call by how long it takes: noise of short calls is the interpreter's, of long ones the machine's."""
    if seconds is None or not 0 < seconds < math.inf:
        return ""
    return _SHORT if seconds < 1e-4 else "under 10 ms" if seconds < 1e-2 else "10 ms and more"


Centre: TypeAlias = Literal["median", "mean", "lowest third"]
"""A way to make one number of a process."""


def centre_of(runs: Iterable[Run], noise_class: str = "") -> Callable[[Process], float]:
    """How one number is made of a process, the same way in all runs of a case."""
    return CENTRES[centre_for(shortest_of(runs), noise_class)]


def shortest_of(runs: Iterable[Run]) -> float:
    """The fewest costs of a process that has some; infinite for none."""
    return min((len(process) for run in runs for process in run if process), default=math.inf)


def centre_for(shortest: float, noise_class: str) -> Centre:
    """The way that varies least between the processes of a case, the shortest of which has so many costs.

    A process keeps nine costs, each the median of successive pairs of blocks. For short calls each is over dozens of pairs, and
    they differ since something disturbed the process for a while: the lowest third is undisturbed. For longer calls each is over
    a few pairs, and they differ by chance, which their mean evens out. Of few costs it is the median.
    """
    if noise_class and shortest >= FEWEST_COSTS:
        return "lowest third" if noise_class == _SHORT else "mean"
    return "median"


def _of_lowest_third(process: Process) -> float:
    return statistics.fmean(sorted(process)[: round(len(process) / 3)])


def centre(process: Process) -> float:
    """The median cost of a process; NaN for one without costs."""
    if len(process) == 1:
        return process[0]
    return statistics.median(process) if process else math.nan


CENTRES: Final[Mapping[Centre, Callable[[Process], float]]] = {
    "median": centre,
    "mean": statistics.fmean,
    "lowest third": _of_lowest_third,
}
"""Each for a process with costs; of few costs only the median is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How precisely the cost of each case is to be measured: processes are added until it is, or until there are `most`."""

    half_width: float  # of the 95 % interval of the cost: a logarithm of a ratio
    most: int


def imprecise(runs: Mapping[str, Run], classes: Mapping[str, str], precision: Precision) -> set[str]:
    """The cases whose cost is not known precisely enough, by their processes so far. `classes`: their `duration_class`.

    Nothing is said of the cost itself here, only of its precision, so stopping early favours neither a faster nor a slower
    result. A few processes may agree by chance, so their variance is moderated by that of the other cases.
    """
    centres: dict[str, list[float]] = {}
    for name, run in runs.items():
        centre = centre_of((run,), classes[name])
        centres[name] = [centre(process) for process in run if process]
    own = {name: statistics.variance(costs) for name, costs in centres.items() if len(costs) > 1}
    if not own:
        return set()
    others = statistics.median(own.values())
    found: set[str] = set()
    for name, variance in own.items():
        count = len(centres[name])
        moderated = (others * _PRIOR_FREEDOM + variance * (count - 1)) / (_PRIOR_FREEDOM + count - 1)
        if count < precision.most and 2 * math.sqrt(moderated / count) > precision.half_width:
            found.add(name)
    return found
