"""Samples to compare: costs of one case, measured in several processes of the base run, of the head run and of earlier runs.

A cost is the natural logarithm of something that is better small: the subject's time over eager's, seconds of a compilation,
bytes. A difference of two costs is thus the logarithm of a ratio, and 0.0953 is 10 % worse.

The unit of measurement is the process. Blocks timed within one share its memory layout, its hash seed and whatever else ran on
the machine just then, so a hundred of them say little more than one number, its centre (`centre_of`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

Process: TypeAlias = Sequence[float]
"""Costs of the blocks of calls that were timed in one process, in order."""
Run: TypeAlias = Sequence[Process]
"""One run's processes."""
_FEWEST_COSTS: Final = 6  # of a process, of which the lowest third are two
_SHORT: Final = "under 0.1 ms"


class SpeedCase(NamedTuple):
    """One case in two runs and in its history. A tuple, since a comparison makes one of each case and quantity.

    Two codes that are equal say that the subject generated the same code in both runs; None says that it is not known.
    """

    base: Run
    head: Run
    history: Sequence[Run] = ()  # earlier runs of the case, oldest first, without base
    noise_class: str = ""  # cases of one class share what is not yet known about the noise of each (`duration_class`)
    base_code: str | None = None
    head_code: str | None = None
    is_control: bool = False  # cannot have changed: eager compared with eager, say

    @property
    def is_untouched(self) -> bool:
        """Whether nothing that this case measures can have changed, so that any difference is noise."""
        return self.is_control or (self.base_code is not None and self.base_code == self.head_code)


def centre_of(runs: Iterable[Run], noise_class: str = "") -> Callable[[Process], float]:
    """How one number is made of a process, the same way in all runs of a case: the one that varies least between processes.

    A process keeps nine costs, each the median of successive pairs of blocks. For short calls each is over dozens of pairs, and
    they differ since something disturbed the process for a while: the lowest third is undisturbed. For longer calls each is over
    a few pairs, and they differ by chance, which their mean evens out. Of few costs it is the median.
    """
    if noise_class and all(len(process) >= _FEWEST_COSTS for run in runs for process in run if process):
        return _of_lowest_third if noise_class == _SHORT else statistics.fmean
    return centre


def _of_lowest_third(process: Process) -> float:
    return statistics.fmean(sorted(process)[: round(len(process) / 3)])


def centre(process: Process) -> float:
    """The median cost of a process; NaN for one without costs."""
    if len(process) == 1:
        return process[0]
    return statistics.median(process) if process else math.nan


def centres(run: Run) -> list[float]:
    """The median cost of each process that has finite ones."""
    return [median for process in run if math.isfinite(median := centre(process))]


def log_costs(values: Sequence[float | None]) -> Run:
    """A run of which each process measured one positive number: seconds of a compilation, bytes. Others are left out."""
    return tuple((math.log(value),) for value in values if value is not None and 0 < value < math.inf)


def duration_class(seconds: float | None) -> str:
    """The class of a call by how long it takes: noise of short calls is the interpreter's, of long ones the machine's."""
    if seconds is None or not 0 < seconds < math.inf:
        return ""
    return _SHORT if seconds < 1e-4 else "under 10 ms" if seconds < 1e-2 else "10 ms and more"
