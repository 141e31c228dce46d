"""How much a case's cost varies when nothing changed, from its own history as far as it has one, else from cases like it.

Three things are estimated, in variances of one process's cost:

* The spread of processes within one run, pooled over all runs of the case.
* How much more runs differ than their processes make expected (`excess`): the machine was busier, or another one. It is one
  factor for all cases, from changes between successive runs of their histories; without histories, from the present
  differences, around their median, since most cases of a comparison are unchanged.
* The case's own past changes, as rustc-perf learns its thresholds. Their median is used, so that a real change of the past does
  not count as noise.

A handful of numbers is too few to trust a variance, so it is moderated: shrunk towards that of all cases of its class, by as
much as the cases' variances agree (Smyth 2004, "Linear models and empirical Bayes methods", which limma uses for genes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.special

from results.speed.costs import CostTable

SMALLEST: Final = 1e-6  # variance: 0.1 % of a cost; clocks and rounded figures make smaller ones
_MOST_FREEDOM: Final = 40.0  # of a prior: classes are never trusted as if they were infinitely many measurements
_FEW_CASES: Final = 6  # with fewer, a class has no prior of its own
_FEW_CHANGES: Final = 20  # with fewer past changes of all cases, the excess is learned from the present differences too
_FEW_DIFFERENCES: Final = 8
_FAR: Final = 12.0  # times the noise: squares beyond that are changes
_ROUNDS: Final = 3
_WINSORISED: Final = 0.68  # variance of normal numbers of which a tenth at each end is winsorised
_MEDIAN_SQUARE: Final = float(scipy.special.chdtri(1, 0.5))  # of a standard normal number
_MEDIAN_EFFICIENCY: Final = 0.37  # a median of squares tells as much as the mean of so many times fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """An estimate, and the degrees of freedom that it has."""

    value: float
    freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Variances:
    """Estimates for many cases: arrays with one number a case."""

    value: np.ndarray
    freedom: np.ndarray

    def moderated(self, own: Variances) -> Variances:
        """These estimates, with what the cases' own tell: weighted by their degrees of freedom."""
        freedom = self.freedom + own.freedom
        return Variances(value=(self.value * self.freedom + own.value * own.freedom) / freedom, freedom=freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """An estimate of the noise of each case: the variance of one process's cost, as differences of runs show it."""

    by_case: Variances  # in the order of the table's cases
    excess: float  # factor by which the variance between runs exceeds what their processes make expected; at least 1


ASSUMED: Final = Variance(value=0.05**2, freedom=2.0)  # where few cases tell any: 5 %, and hardly trusted


def learn_noise(table: CostTable, assumed: Variance = ASSUMED) -> Noise:
    """The noise of all cases. `assumed` is the prior where fewer than _FEW_CASES cases tell theirs."""
    within = _within_runs(table)
    changes = table.past_changes()
    if not within.freedom.any():
        return _from_differences(table, changes, assumed)
    moderated = _priors(within, table.classes, assumed).moderated(within)
    excess = _excess(table, changes, moderated)
    known = Variances(value=moderated.value * excess, freedom=moderated.freedom)
    return Noise(by_case=_with_past(known, _past(changes)), excess=excess)


def _with_past(known: Variances, past: Variances) -> Variances:
    """An estimate of the cases' noise that takes their past changes into account.

    Processes of one run cannot show what differs between runs. So the more the past exceeds what chance would make of what is
    known, the less that counts.
    """
    has_past = past.freedom > 0
    if not has_past.any():
        return known
    by_chance = known.value[has_past] * scipy.special.fdtri(past.freedom[has_past], known.freedom[has_past], 0.95)
    freedom = known.freedom.copy()
    freedom[has_past] /= np.maximum(1.0, past.value[has_past] / by_chance)
    with_past = Variances(value=known.value, freedom=freedom).moderated(past)
    return Variances(
        value=np.where(has_past, with_past.value, known.value), freedom=np.where(has_past, with_past.freedom, freedom)
    )


def _within_runs(table: CostTable) -> Variances:
    """The variance of processes around the mean of their run, pooled over the runs of each case."""
    is_spread = table.count > 1
    squares = np.where(is_spread, table.squares, 0.0).sum(axis=1)
    freedom = np.where(is_spread, table.count - 1, 0).sum(axis=1).astype(np.float64)
    value = np.divide(squares, freedom, out=np.zeros_like(squares), where=freedom > 0)
    return Variances(value=np.where(freedom > 0, np.maximum(SMALLEST, value), 0.0), freedom=freedom)


def _past(changes: np.ndarray) -> Variances:
    """The variance that changes between successive earlier runs show; unknown, without freedom, with fewer than two."""
    known = (~np.isnan(changes)).sum(axis=1)
    is_known = known >= 2
    value = np.zeros(len(changes))
    if is_known.any():
        value[is_known] = np.maximum(SMALLEST, np.nanmedian(changes[is_known], axis=1) / _MEDIAN_SQUARE)
    return Variances(value=value, freedom=np.where(is_known, known * _MEDIAN_EFFICIENCY, 0.0))


def _from_differences(table: CostTable, changes: np.ndarray, assumed: Variance) -> Noise:
    """The noise where every run measured one process: from past changes, or from the present differences of all cases."""
    past = _past(changes)
    has_past = past.freedom > 0
    value, freedom = past.value[has_past], past.freedom[has_past]
    if len(value) < _FEW_CASES:
        units = _present_units(table)
        units = units[~np.isnan(units)]
        if len(units) >= _FEW_DIFFERENCES:
            value = np.concatenate([value, np.maximum(SMALLEST, units)])
            freedom = np.concatenate([freedom, np.ones(len(units))])
    prior = _fit_prior(value, freedom, assumed)
    shape = len(table.names)
    known = Variances(value=np.full(shape, prior.value), freedom=np.full(shape, prior.freedom))
    return Noise(by_case=known.moderated(past), excess=1.0)


def _present_units(table: CostTable) -> np.ndarray:
    """The square of each present difference, without what all have in common, divided by its `units`; NaN for none."""
    difference = table.difference
    if np.isnan(difference).all():
        return difference
    return (difference - np.nanmedian(difference)) ** 2 / table.units


def _excess(table: CostTable, changes: np.ndarray, moderated: Variances) -> float:
    squares = changes / moderated.value[:, None]  # squares of t statistics
    past = squares[~np.isnan(squares)]
    if len(past) < _FEW_CHANGES:
        present = _present_units(table) / moderated.value
        past = np.concatenate([past, present[~np.isnan(present)]])
    if len(past) < _FEW_DIFFERENCES:
        return 1.0
    expected = float(scipy.special.fdtri(1, max(1.0, float(np.median(moderated.freedom))), 0.5))
    factor = max(1.0, float(np.median(past)) / expected)
    for _ in range(_ROUNDS):  # cases that did change are left out, or they would hide themselves and others
        factor = max(1.0, float(np.median(past[past <= _FAR * factor])) / expected)
    return factor


def _priors(within: Variances, classes: Sequence[str], assumed: Variance) -> Variances:
    """The prior of each class; that of all cases for a class with few, and the assumed one if all are few."""
    is_known = within.freedom > 0
    general = _fit_prior(within.value[is_known], within.freedom[is_known], assumed)
    value, freedom = np.full(len(classes), general.value), np.full(len(classes), general.freedom)
    names = np.array(classes)
    for noise_class in dict.fromkeys(classes):
        of_class = names == noise_class
        own = of_class & is_known
        if own.sum() >= _FEW_CASES:
            prior = _fit_prior(within.value[own], within.freedom[own], assumed)
            value[of_class], freedom[of_class] = prior.value, prior.freedom
    return Variances(value=value, freedom=freedom)


def _fit_prior(value: np.ndarray, freedom: np.ndarray, assumed: Variance) -> Variance:
    """The scaled inverse chi-square distribution from which the true variances of these cases come, by moments of logarithms.

    Logarithms are winsorised, a tenth at each end, so that a few wild cases do not make all others look wild.
    """
    if len(value) < _FEW_CASES:
        return assumed
    halves = freedom / 2
    logs = np.log(value) - scipy.special.digamma(halves) + np.log(halves)
    logs = np.clip(logs, *np.quantile(logs, [0.1, 0.9]))
    spread = float(np.var(logs, ddof=1) / _WINSORISED - np.mean(_trigamma(halves)))
    half = _MOST_FREEDOM / 2
    if spread > _trigamma(half):
        half = _inverse_trigamma(spread)
    scale = math.exp(float(logs.mean()) + float(scipy.special.digamma(half)) - math.log(half))
    return Variance(value=max(SMALLEST, scale), freedom=2 * half)


def _inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, between 0.5, one degree of freedom, and _MOST_FREEDOM / 2.

    By bisection, as trigamma falls: the import of scipy.optimize takes longer than a comparison.
    """
    low, high = 0.5, _MOST_FREEDOM / 2
    if _trigamma(low) <= value:
        return low
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return low


def _trigamma(x: np.ndarray | float) -> np.ndarray:
    return scipy.special.zeta(2, x)  # which is what polygamma(1, x) computes
