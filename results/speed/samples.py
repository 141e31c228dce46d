"""Samples to compare: costs of one case, measured in several processes of the base run, of the head run and of earlier runs.

A cost is the natural logarithm of something that is better small: the subject's time over eager's, seconds of a compilation,
bytes. A difference of two costs is thus the logarithm of a ratio, and 0.0953 is 10 % worse.

The unit of measurement is the process, of which one number is made (`oracle.costs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from oracle.costs import Run, centre


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


def centres(run: Run) -> list[float]:
    """The median cost of each process that has finite ones."""
    return [median for process in run if math.isfinite(median := centre(process))]


def log_costs(values: Sequence[float | None]) -> Run:
    """A run of which each process measured one positive number: seconds of a compilation, bytes. Others are left out."""
    return tuple((math.log(value),) for value in values if value is not None and 0 < value < math.inf)
