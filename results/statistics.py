"""Statistics of timings: means of ratios, bootstrap intervals, and tests for changes of speed.

Random numbers are seeded, so that the same records give the same table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.special

CONFIDENCE: Final = 0.95
REAL_CHANGE: Final = 0.03  # speed changes up to 3 % are not reported, since other processes cause them
_RESAMPLES: Final = 2000
_BATCH_ELEMENTS: Final = 4_000_000  # elements of one block of resamples, 32 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its confidence interval. `low` and `high` are None if there are too few samples."""

    value: float
    low: float | None = None
    high: float | None = None


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive ratios, none of them clipped. NaN for no values.

    Differs: PyTorch's dashboard clips ratios below 1 to 1 first, which hides every slowdown.
    Raises ValueError for a ratio that is not positive and finite, which the caller must leave out explicitly.
    """
    ratios = np.asarray(values, dtype=np.float64)
    if ratios.size == 0:
        return math.nan
    if not np.all(np.isfinite(ratios) & (ratios > 0)):
        raise ValueError(f"geomean of {ratios[~(np.isfinite(ratios) & (ratios > 0))][0]}, but should be > 0 and finite")
    return float(np.exp(np.log(ratios).mean()))


def geomean_estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Geometric mean with its bootstrap interval."""
    center = geomean(values)
    if len(values) < 2:
        return Estimate(value=center)
    low, high = _bootstrap(np.log(np.asarray(values, dtype=np.float64)), seed)
    return Estimate(value=center, low=math.exp(low), high=math.exp(high))


def _bootstrap(samples: np.ndarray, seed: int) -> tuple[float, float]:
    """The bootstrap interval of the mean."""
    if np.all(samples == samples[0]):
        return float(samples[0]), float(samples[0])  # all samples are equal
    # Written here, since scipy.stats.bootstrap renamed its seed argument between the versions we support.
    rng = np.random.default_rng(seed)
    estimates: list[np.ndarray] = []
    batch = max(1, _BATCH_ELEMENTS // samples.size)
    for start in range(0, _RESAMPLES, batch):
        drawn = rng.choice(samples, size=(min(batch, _RESAMPLES - start), samples.size))  # (resamples, samples)
        estimates.append(drawn.mean(axis=1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(estimates), (tail, 1 - tail))
    return float(low), float(high)


def sign_test(ratios: Sequence[float]) -> float:
    """Two-sided p-value that as many ratios are above 1 as below; ties are left out. 1.0 for no ratios.

    It shows whether many small changes together are faster or slower.
    """
    above = sum(1 for ratio in ratios if ratio > 1)
    below = sum(1 for ratio in ratios if ratio < 1)
    if above + below == 0:
        return 1.0
    # The result of scipy.stats.binomtest, whose import takes longer than a whole comparison.
    return float(min(1.0, 2 * scipy.special.bdtr(min(above, below), above + below, 0.5)))


def proportion_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a probability: that of its posterior after Jeffreys' prior, closed at 0 and 1."""
    tail = (1 - CONFIDENCE) / 2
    a, b = successes + 0.5, trials - successes + 0.5
    low = 0.0 if successes == 0 else float(scipy.special.betaincinv(a, b, tail))
    high = 1.0 if successes == trials else float(scipy.special.betaincinv(a, b, 1 - tail))
    return low, high


def is_real_speed_change(base: Estimate, head: Estimate) -> bool:
    """Whether both intervals are known and disjoint, and the values more than REAL_CHANGE apart."""
    if base.low is None or base.high is None or head.low is None or head.high is None:
        return False
    if not all(math.isfinite(x) and x > 0 for x in (base.value, head.value)):
        return False
    is_apart = head.low > base.high or head.high < base.low
    return is_apart and abs(math.log(head.value / base.value)) > math.log1p(REAL_CHANGE)
