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

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.optimize
import scipy.special

from results.speed.samples import SpeedCase, centres

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
class Noise:
    """What is known of the noise of each case: the variance of one process's cost, as differences of runs show it."""

    by_case: Mapping[str, Variance]
    excess: float  # factor by which the variance between runs exceeds what their processes make expected; at least 1


ASSUMED: Final = Variance(value=0.05**2, freedom=2.0)  # where few cases tell any: 5 %, and hardly trusted


def learn_noise(cases: Mapping[str, SpeedCase], assumed: Variance = ASSUMED) -> Noise:
    """The noise of all cases. `assumed` is the prior where fewer than _FEW_CASES cases tell theirs."""
    within = {name: within_runs(case) for name, case in cases.items()}
    if all(variance.freedom == 0 for variance in within.values()):
        return _from_differences(cases, assumed)
    classes = {name: case.noise_class for name, case in cases.items()}
    priors = _priors(within, classes, assumed)
    moderated = {name: _moderate(priors[classes[name]], within[name]) for name in cases}
    excess = _excess(cases, moderated)
    by_case = {}
    for name, case in cases.items():
        known = Variance(value=moderated[name].value * excess, freedom=moderated[name].freedom)
        by_case[name] = _with_past(known, past_changes(case))
    return Noise(by_case=by_case, excess=excess)


def _with_past(known: Variance, past: Variance) -> Variance:
    """What is known of a case's noise, with what its past changes show.

    Processes of one run cannot show what differs between runs. So the more the past exceeds what chance would make of what is
    known, the less that counts.
    """
    if past.freedom == 0:
        return known
    by_chance = known.value * float(scipy.special.fdtri(past.freedom, known.freedom, 0.95))
    return _moderate(Variance(value=known.value, freedom=known.freedom / max(1.0, past.value / by_chance)), past)


def within_runs(case: SpeedCase) -> Variance:
    """The variance of processes around the mean of their run, pooled over the runs of the case."""
    squares, freedom = 0.0, 0
    for run in (*case.history, case.base, case.head):
        costs = centres(run)
        if len(costs) > 1:
            mean = statistics.fmean(costs)
            squares += sum((cost - mean) ** 2 for cost in costs)
            freedom += len(costs) - 1
    return Variance(value=max(SMALLEST, squares / freedom) if freedom else 0.0, freedom=float(freedom))


def past_changes(case: SpeedCase) -> Variance:
    """The variance that changes between successive earlier runs show, base being the last; unknown with fewer than two."""
    units = _change_units(case)
    if len(units) < 2:
        return Variance(value=0.0, freedom=0.0)
    value = max(SMALLEST, statistics.median(units) / _MEDIAN_SQUARE)
    return Variance(value=value, freedom=len(units) * _MEDIAN_EFFICIENCY)


def _change_units(case: SpeedCase) -> list[float]:
    """The square of each past change, divided by what it would be on average if a process had variance 1."""
    runs = [costs for run in (*case.history, case.base) if (costs := centres(run))]
    return [_unit(old, new) for old, new in itertools.pairwise(runs)]


def _unit(old: Sequence[float], new: Sequence[float], shift: float = 0.0) -> float:
    return (statistics.fmean(new) - statistics.fmean(old) - shift) ** 2 / (1 / len(old) + 1 / len(new))


def _from_differences(cases: Mapping[str, SpeedCase], assumed: Variance) -> Noise:
    """The noise where every run measured one process: from past changes, or from the present differences of all cases."""
    past = {name: past_changes(case) for name, case in cases.items()}
    known = [variance for variance in past.values() if variance.freedom > 0]
    if len(known) < _FEW_CASES:
        units = _present_units(cases)
        if len(units) >= _FEW_DIFFERENCES:
            known += [Variance(value=max(SMALLEST, unit), freedom=1.0) for unit in units]
    prior = fit_prior(known, assumed)
    return Noise(by_case={name: _moderate(prior, variance) for name, variance in past.items()}, excess=1.0)


def _present_units(cases: Mapping[str, SpeedCase]) -> list[float]:
    pairs = [(base, head) for case in cases.values() if (base := centres(case.base)) and (head := centres(case.head))]
    if not pairs:
        return []
    shift = statistics.median(statistics.fmean(head) - statistics.fmean(base) for base, head in pairs)
    return [_unit(base, head, shift) for base, head in pairs]


def _excess(cases: Mapping[str, SpeedCase], moderated: Mapping[str, Variance]) -> float:
    past = [
        unit / moderated[name].value for name, case in cases.items() for unit in _change_units(case)
    ]  # squares of t statistics
    if len(past) < _FEW_CHANGES:
        names = [name for name, case in cases.items() if centres(case.base) and centres(case.head)]
        units = _present_units(cases)
        past += [unit / moderated[name].value for name, unit in zip(names, units, strict=True)]
    if len(past) < _FEW_DIFFERENCES:
        return 1.0
    freedom = statistics.median(variance.freedom for variance in moderated.values())
    expected = float(scipy.special.fdtri(1, max(1.0, freedom), 0.5))
    factor = max(1.0, statistics.median(past) / expected)
    for _ in range(_ROUNDS):  # cases that did change are left out, or they would hide themselves and others
        near = [square for square in past if square <= _FAR * factor]
        factor = max(1.0, statistics.median(near) / expected)
    return factor


def _moderate(prior: Variance, own: Variance) -> Variance:
    freedom = prior.freedom + own.freedom
    value = (prior.value * prior.freedom + own.value * own.freedom) / freedom
    return Variance(value=value, freedom=freedom)


def _priors(within: Mapping[str, Variance], classes: Mapping[str, str], assumed: Variance) -> dict[str, Variance]:
    """The prior of each class; that of all cases for a class with few, and the assumed one if all are few."""
    known = {name: variance for name, variance in within.items() if variance.freedom > 0}
    general = fit_prior(list(known.values()), assumed)
    priors = {}
    for noise_class in set(classes.values()):
        own = [variance for name, variance in known.items() if classes[name] == noise_class]
        priors[noise_class] = fit_prior(own, assumed) if len(own) >= _FEW_CASES else general
    return priors


def fit_prior(variances: Sequence[Variance], assumed: Variance = ASSUMED) -> Variance:
    """The scaled inverse chi-square distribution from which the true variances of these cases come, by moments of logarithms.

    Logarithms are winsorised, a tenth at each end, so that a few wild cases do not make all others look wild.
    """
    if len(variances) < _FEW_CASES:
        return assumed
    halves = np.array([variance.freedom / 2 for variance in variances])
    logs = np.log([variance.value for variance in variances]) - scipy.special.digamma(halves) + np.log(halves)
    logs = np.clip(logs, *np.quantile(logs, [0.1, 0.9]))
    spread = float(np.var(logs, ddof=1) / _WINSORISED - np.mean(scipy.special.polygamma(1, halves)))
    half = _MOST_FREEDOM / 2
    if spread > scipy.special.polygamma(1, half):
        half = _inverse_trigamma(spread)
    value = math.exp(float(logs.mean()) + float(scipy.special.digamma(half)) - math.log(half))
    return Variance(value=max(SMALLEST, value), freedom=2 * half)


def _inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, between 0.5, one degree of freedom, and _MOST_FREEDOM / 2."""
    low, high = 0.5, _MOST_FREEDOM / 2
    if scipy.special.polygamma(1, low) <= value:
        return low
    root: Any = scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - value, low, high)
    return float(root)
