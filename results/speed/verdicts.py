"""Says of each case of a comparison whether it became better, worse, stayed the same, or was not measured well enough to tell.

A case's difference is the mean of its processes' costs in head minus that in base. It is divided by its standard error, which
`noise` learns from the case's history and from other cases, and the p-value is of the hypothesis that the true difference is at
most `NEGLIGIBLE` (McCarthy & Smyth 2009): with enough data, a difference of a tenth of a percent would be significant, too.
Benjamini and Hochberg's procedure then bounds the share of false alarms among all verdicts "better" and "worse".

Two things decide before the statistics. A case whose generated code is the same in both runs is the same. And if cases that
cannot have changed moved in one direction together, something else did, so that the run is invalid and no case is called slow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import scipy.special

from results.speed.noise import ASSUMED, Noise, Variance, learn_noise
from results.speed.samples import SpeedCase, centres
from results.statistics import sign_test

FALSE_DISCOVERIES: Final = 0.10  # largest expected share of false ones among the verdicts better and worse
NEGLIGIBLE: Final = math.log(1.01)  # differences up to 1 % count as none
LEAST: Final = math.log(1.03)  # smaller differences are never reported
RESOLUTION: Final = math.log(1.10)  # "same" needs an interval that excludes larger differences
CONFIDENCE: Final = 0.95
DRIFT_P: Final = 0.001  # of the sign test over untouched cases
DRIFT_LEAST: Final = math.log(1.01)
_MOST_PROCESSES: Final = 50  # more are not asked for


class Word(str, Enum):
    """A verdict in one word."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    NOT_ENOUGH_DATA = "not enough data"
    RUN_INVALID = "run invalid"

    @property
    def is_change(self) -> bool:
        return self in (Word.BETTER, Word.WORSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVerdict:
    """The verdict on one case. Numbers are ratios of costs, head over base: 1.1 is 10 % slower, longer or more.

    They are None where they are not known.
    """

    word: Word
    reason: str
    effect: float | None = None
    low: float | None = None  # 95 % confidence interval of the effect
    high: float | None = None
    p: float | None = None  # that the true effect is at most NEGLIGIBLE
    adjusted_p: float | None = None  # p adjusted for the number of cases: reported up to FALSE_DISCOVERIES
    threshold: float | None = None  # about the smallest effect that would have been reported; at least 1

    def to_json(self) -> dict[str, Any]:
        return {
            "word": self.word.value, "reason": self.reason, "effect": self.effect, "low": self.low, "high": self.high,
            "p": self.p, "adjusted_p": self.adjusted_p, "threshold": self.threshold,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the cases that cannot have changed moved together."""

    cases: int
    shift: float  # median ratio of their costs, head over base
    p: float  # of a sign test

    @property
    def is_real(self) -> bool:
        return self.p < DRIFT_P and abs(math.log(self.shift)) > DRIFT_LEAST

    def __str__(self) -> str:
        direction = "worse" if self.shift > 1 else "better"
        return f"{self.cases} untouched cases became {direction} together, by {_percent(self.shift)} (p = {self.p:.1g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdicts of one comparison, keyed by case, with the drift and the noise that all of them share."""

    verdicts: Mapping[str, SpeedVerdict]
    drift: Drift | None  # None without untouched cases that were measured
    excess: float  # `noise.Noise.excess`

    @property
    def is_valid(self) -> bool:
        return self.drift is None or not self.drift.is_real

    def of(self, word: Word) -> list[str]:
        """Names of the cases with this verdict, the largest effect first."""
        names = [name for name, verdict in self.verdicts.items() if verdict.word is word]
        return sorted(names, key=lambda name: -abs(math.log(self.verdicts[name].effect or 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """A measured difference, in logarithms."""

    value: float
    error: float  # standard error
    freedom: float
    unit: float  # variance of one process
    processes: int  # of the run with fewer

    @property
    def p(self) -> float:
        """P-value of the hypothesis that the true difference is at most NEGLIGIBLE, in either direction."""
        size = abs(self.value)
        tails = [scipy.special.stdtr(self.freedom, (shift - size) / self.error) for shift in (NEGLIGIBLE, -NEGLIGIBLE)]
        return float(min(1.0, sum(tails)))

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        return -float(scipy.special.stdtrit(self.freedom, (1 - confidence) / 2)) * self.error

    def threshold(self, p: float) -> float:
        """The smallest difference with a p-value of at most `p`."""
        return max(LEAST, NEGLIGIBLE - float(scipy.special.stdtrit(self.freedom, p)) * self.error)


def judge_speed(
    cases: Mapping[str, SpeedCase],
    *,
    false_discoveries: float = FALSE_DISCOVERIES,
    least: float = LEAST,
    resolution: float = RESOLUTION,
    assumed: Variance = ASSUMED,
) -> Judgement:
    """The verdicts on the cases of one comparison and one quantity, by the names given.

    `least` and `resolution` are logarithms of ratios, as the defaults; `assumed` is the variance of a process's cost where the
    cases are too few to tell it. The same cases get the same verdicts: nothing is drawn.
    """
    noise = learn_noise(cases, assumed)
    differences = {name: found for name, case in cases.items() if (found := _difference(name, case, noise)) is not None}
    drift = _drift(cases)
    if drift is not None and drift.is_real:
        verdicts = {name: _invalid(case, drift, differences.get(name)) for name, case in cases.items()}
        return Judgement(verdicts=verdicts, drift=drift, excess=noise.excess)
    tested = [name for name in differences if not cases[name].is_untouched]
    adjusted = _adjusted([differences[name].p for name in tested])
    largest_p = _largest_accepted([differences[name].p for name in tested], adjusted, false_discoveries)
    by_name = dict(zip(tested, adjusted, strict=True))
    verdicts = {}
    for name, case in cases.items():
        found = differences.get(name)
        if case.is_untouched:
            verdicts[name] = _with_numbers(Word.SAME, _why_same(case), found, threshold=None)
        elif found is None:
            verdicts[name] = SpeedVerdict(word=Word.NOT_ENOUGH_DATA, reason=_why_unknown(case))
        else:
            threshold = max(least, found.threshold(largest_p))
            word, reason = _word(found, by_name[name], threshold, false_discoveries, least, resolution)
            verdicts[name] = _with_numbers(word, reason, found, adjusted_p=by_name[name], threshold=threshold)
    return Judgement(verdicts=verdicts, drift=drift, excess=noise.excess)


def _difference(name: str, case: SpeedCase, noise: Noise) -> _Difference | None:
    base, head = centres(case.base), centres(case.head)
    if not base or not head:
        return None
    variance = noise.by_case[name]
    return _Difference(
        value=statistics.fmean(head) - statistics.fmean(base),
        error=math.sqrt(variance.value * (1 / len(base) + 1 / len(head))),
        freedom=max(1.0, variance.freedom),
        unit=variance.value,
        processes=min(len(base), len(head)),
    )


def _drift(cases: Mapping[str, SpeedCase]) -> Drift | None:
    shifts = [
        statistics.fmean(head) - statistics.fmean(base)
        for case in cases.values()
        if case.is_untouched and (base := centres(case.base)) and (head := centres(case.head))
    ]
    if not shifts:
        return None
    p = sign_test([math.exp(shift) for shift in shifts])
    return Drift(cases=len(shifts), shift=math.exp(statistics.median(shifts)), p=p)


def _adjusted(p_values: Sequence[float]) -> list[float]:
    if not p_values:
        return []
    import scipy.stats  # noqa: PLC0415  takes longer to load than everything else that `torch-oracle compare --help` needs

    return [float(p) for p in scipy.stats.false_discovery_control(np.array(p_values))]


def _largest_accepted(p_values: Sequence[float], adjusted: Sequence[float], false_discoveries: float) -> float:
    """The p-value up to which cases are reported; with none reported, that which a single one would need."""
    accepted = [p for p, q in zip(p_values, adjusted, strict=True) if q <= false_discoveries]
    return max([false_discoveries / max(1, len(p_values)), *accepted])


def _word(
    found: _Difference, adjusted_p: float, threshold: float, false_discoveries: float, least: float, resolution: float
) -> tuple[Word, str]:
    size = abs(found.value)
    if adjusted_p <= false_discoveries and size >= least:
        told = f"{_percent(math.exp(found.value))}, more than {_percent(math.exp(threshold))} that noise explains"
        return (Word.WORSE if found.value > 0 else Word.BETTER), told
    if size + found.half_width() <= resolution:
        return Word.SAME, f"a change of more than {_percent(math.exp(resolution))} is excluded"
    return Word.NOT_ENOUGH_DATA, _how_much_more(found, threshold, resolution)


def _how_much_more(found: _Difference, threshold: float, resolution: float) -> str:
    """Why the data do not decide, and about how many processes would."""
    text = f"a change of up to {_percent(math.exp(threshold))} would not be told from noise"
    wanted = math.ceil(2 * found.unit * (found.half_width() / found.error / resolution) ** 2)
    if found.processes < wanted <= _MOST_PROCESSES:
        text += f"; about {wanted} processes instead of {found.processes} would do"
    return text


def _why_unknown(case: SpeedCase) -> str:
    return f"not measured in {'head' if centres(case.base) else 'base'}"


def _why_same(case: SpeedCase) -> str:
    return "cannot have changed: it is compared with itself" if case.is_control else "the generated code is the same"


def _invalid(case: SpeedCase, drift: Drift, found: _Difference | None) -> SpeedVerdict:
    if case.is_untouched:
        return _with_numbers(Word.SAME, _why_same(case), found, threshold=None)
    return _with_numbers(Word.RUN_INVALID, f"{drift}: measure both runs again", found, threshold=None)


def _with_numbers(
    word: Word, reason: str, found: _Difference | None, *, threshold: float | None, adjusted_p: float | None = None
) -> SpeedVerdict:
    if found is None:
        return SpeedVerdict(word=word, reason=reason)
    width = found.half_width()
    return SpeedVerdict(
        word=word, reason=reason, effect=math.exp(found.value),
        low=math.exp(found.value - width), high=math.exp(found.value + width), p=found.p, adjusted_p=adjusted_p,
        threshold=None if threshold is None else math.exp(threshold),
    )  # fmt: skip


def _percent(ratio: float) -> str:
    """1.05 and 0.95 as "5.0 %"."""
    return f"{100 * abs(ratio - 1):.1f} %"
