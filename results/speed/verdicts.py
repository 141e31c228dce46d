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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np
import scipy.special

from results.speed.costs import CostTable, PastCosts
from results.speed.noise import ASSUMED, Variance, learn_noise
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
_MOST_TOLD: Final = 10  # as a factor of the cost; a larger change that noise may hide is reported in words


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


class Verdicts(Mapping[str, SpeedVerdict]):
    """The verdicts on many cases, by name. A verdict, with its numbers and reason, is computed on first access."""

    def __init__(
        self,
        words: Mapping[str, Word],
        make: Callable[[str, Word], SpeedVerdict],
        effect: Callable[[str], float | None] | None = None,
    ) -> None:
        self.words = words
        self._make = make
        self._effect = effect

    def __getitem__(self, name: str) -> SpeedVerdict:
        return self._make(name, self.words[name])

    def effect(self, name: str) -> float | None:
        """`SpeedVerdict.effect` of a case, without the rest of its verdict."""
        return self[name].effect if self._effect is None else self._effect(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def changes(self) -> dict[str, SpeedVerdict]:
        """Those that say better or worse."""
        return {name: self[name] for name, word in self.words.items() if word.is_change}

    def with_changed(self, change: Callable[[str, SpeedVerdict], SpeedVerdict]) -> Verdicts:
        """These verdicts, with `change` applied to those that say better or worse."""
        changed = {name: change(name, verdict) for name, verdict in self.changes().items()}
        words = {**self.words, **{name: verdict.word for name, verdict in changed.items()}}
        return Verdicts(words, lambda name, word: changed[name] if name in changed else self[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdicts of one comparison, keyed by case, with the drift and the noise that all of them share."""

    verdicts: Verdicts
    drift: Drift | None  # None without untouched cases that were measured
    excess: float  # `noise.Noise.excess`

    @property
    def is_valid(self) -> bool:
        return self.drift is None or not self.drift.is_real

    def of(self, word: Word) -> list[str]:
        """Names of the cases with this verdict, the largest effect first."""
        names = [name for name, own in self.verdicts.words.items() if own is word]
        return sorted(names, key=lambda name: -abs(math.log(self.verdicts[name].effect or 1.0)))

    def count(self, word: Word) -> int:
        """How many cases have this verdict."""
        return sum(own is word for own in self.verdicts.words.values())

    def with_changed(self, change: Callable[[str, SpeedVerdict], SpeedVerdict]) -> Judgement:
        return replace(self, verdicts=self.verdicts.with_changed(change))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Differences:
    """The measured differences of all cases, in logarithms: arrays, NaN for a case that was not measured in both runs."""

    value: np.ndarray
    error: np.ndarray  # standard error
    freedom: np.ndarray
    unit: np.ndarray  # variance of one process
    processes: np.ndarray  # of the run with fewer

    @classmethod
    def of(cls, table: CostTable, variance: np.ndarray, freedom: np.ndarray) -> _Differences:
        return cls(
            value=table.difference,
            error=np.sqrt(variance * table.units),
            freedom=np.maximum(1.0, freedom),
            unit=variance,
            processes=np.minimum(table.count[:, -2], table.count[:, -1]),
        )

    @property
    def is_measured(self) -> np.ndarray:
        return ~np.isnan(self.value)

    def ratio(self, row: int) -> float | None:
        """The ratio of head's cost to base's; None where it was not measured in both."""
        value = float(self.value[row])
        return None if math.isnan(value) else math.exp(value)

    def p(self) -> np.ndarray:
        """P-values of the hypothesis that the true difference is at most NEGLIGIBLE, in either direction."""
        size = np.abs(self.value)
        tails = [scipy.special.stdtr(self.freedom, (shift - size) / self.error) for shift in (NEGLIGIBLE, -NEGLIGIBLE)]
        return np.minimum(1.0, tails[0] + tails[1])

    def half_width(self, confidence: float = CONFIDENCE) -> np.ndarray:
        return -self._quantile((1 - confidence) / 2) * self.error

    def threshold(self, p: float) -> np.ndarray:
        """The smallest differences with a p-value of at most `p`."""
        return np.maximum(LEAST, NEGLIGIBLE - self._quantile(p) * self.error)

    def _quantile(self, p: float) -> np.ndarray:
        """Quantiles of Student's distribution. Many cases share their degrees of freedom, and each quantile is a search."""
        freedom, place = np.unique(self.freedom, return_inverse=True)
        return scipy.special.stdtrit(freedom, p)[place]


def judge_speed(
    cases: Mapping[str, SpeedCase],
    *,
    least: float = LEAST,
    resolution: float = RESOLUTION,
    assumed: Variance = ASSUMED,
    past: PastCosts | None = None,
) -> Judgement:
    """The verdicts on the cases of one comparison and one quantity, by the names given.

    `least` and `resolution` are logarithms of ratios, as the defaults; `assumed` is the variance of a process's cost where the
    cases are too few to tell it. `past`: earlier runs, if they are not in the cases themselves. The same cases get the same
    verdicts: nothing is drawn.
    """
    table = CostTable.of(cases, past)
    noise = learn_noise(table, assumed)
    found = _Differences.of(table, noise.by_case.value, noise.by_case.freedom)
    untouched = np.fromiter((case.is_untouched for case in cases.values()), dtype=bool, count=len(cases))
    tested = found.is_measured & ~untouched
    p, half_width = found.p(), found.half_width()
    adjusted = np.full(len(cases), math.nan)
    adjusted[tested] = _adjusted(p[tested])
    is_accepted = tested & (adjusted <= FALSE_DISCOVERIES)
    # The p-value up to which cases are reported; with none reported, that which a single one would need.
    largest_p = max([FALSE_DISCOVERIES / max(1, int(tested.sum())), *p[is_accepted].tolist()])
    size = np.abs(found.value)
    judged = _Judged(
        cases=cases,
        row_of={name: row for row, name in enumerate(table.names)},
        found=found,
        tested=tested,
        p=p,
        adjusted=adjusted,
        half_width=half_width,
        threshold=np.maximum(least, found.threshold(largest_p)),
        resolution=resolution,
        drift=_drift(found.value[untouched & found.is_measured]),
    )
    words = judged.words(
        is_change=is_accepted & (size >= least), is_same=untouched | (tested & (size + half_width <= resolution))
    )
    verdicts = Verdicts(words, judged.verdict, lambda name: found.ratio(judged.row_of[name]))
    return Judgement(verdicts=verdicts, drift=judged.drift, excess=noise.excess)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Results of the computation for all cases of a comparison: arrays with one number a case."""

    cases: Mapping[str, SpeedCase]
    row_of: Mapping[str, int]
    found: _Differences
    tested: np.ndarray  # whether it was measured in both runs, and may have changed
    p: np.ndarray
    adjusted: np.ndarray
    half_width: np.ndarray
    threshold: np.ndarray
    resolution: float
    drift: Drift | None

    def words(self, *, is_change: np.ndarray, is_same: np.ndarray) -> dict[str, Word]:
        if self.drift is not None and self.drift.is_real:
            return {name: Word.SAME if case.is_untouched else Word.RUN_INVALID for name, case in self.cases.items()}
        rows = zip(self.cases, self.found.value.tolist(), is_change.tolist(), is_same.tolist(), strict=True)
        return {
            name: (Word.WORSE if value > 0 else Word.BETTER) if change else Word.SAME if same else Word.NOT_ENOUGH_DATA
            for name, value, change, same in rows
        }

    def verdict(self, name: str, word: Word) -> SpeedVerdict:
        """The verdict on a case, whose word is known."""
        row, case = self.row_of[name], self.cases[name]
        is_tested = bool(self.tested[row]) and word is not Word.RUN_INVALID
        if word is Word.RUN_INVALID:
            reason = f"{self.drift}: measure both runs again"
        elif case.is_untouched:
            reason = _why_same(case)
        else:
            reason = self._reason(word, row) if is_tested else _why_unknown(case)
        effect = self.found.ratio(row)
        if effect is None:
            return SpeedVerdict(word=word, reason=reason)
        value, width = float(self.found.value[row]), float(self.half_width[row])
        return SpeedVerdict(
            word=word,
            reason=reason,
            effect=effect,
            low=math.exp(value - width),
            high=math.exp(value + width),
            p=float(self.p[row]),
            adjusted_p=float(self.adjusted[row]) if is_tested else None,
            threshold=math.exp(self.threshold[row]) if is_tested else None,
        )

    def _reason(self, word: Word, row: int) -> str:
        """Why a tested case has its verdict."""
        threshold = _percent(math.exp(self.threshold[row]))
        if word.is_change:
            return f"{_percent(math.exp(self.found.value[row]))}, more than {threshold} that noise explains"
        if word is Word.SAME:
            return f"a change of more than {_percent(math.exp(self.resolution))} is excluded"
        if self.threshold[row] > math.log(_MOST_TOLD):
            return f"the processes differ so much that even {_MOST_TOLD} times the cost would not be told from noise"
        text = f"a change of up to {threshold} would not be told from noise"
        quantile = self.half_width[row] / self.found.error[row]
        wanted = math.ceil(2 * self.found.unit[row] * (quantile / self.resolution) ** 2)  # processes
        if self.found.processes[row] < wanted <= _MOST_PROCESSES:
            text += f"; about {wanted} processes instead of {self.found.processes[row]} would do"
        return text


def _drift(shifts: np.ndarray) -> Drift | None:
    if not len(shifts):
        return None
    p = sign_test([math.exp(shift) for shift in shifts.tolist()])
    return Drift(cases=len(shifts), shift=math.exp(float(np.median(shifts))), p=p)


def _adjusted(p_values: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p-values, as scipy.stats.false_discovery_control, whose import takes long."""
    if not len(p_values):
        return p_values
    order = np.argsort(p_values)
    ranks = np.arange(1, len(p_values) + 1)
    raised = p_values[order] * (len(p_values) / ranks)
    adjusted = np.empty_like(raised)
    adjusted[order] = np.minimum.accumulate(raised[::-1])[::-1]
    return np.clip(adjusted, 0, 1)


def _why_unknown(case: SpeedCase) -> str:
    return f"not measured in {'head' if centres(case.base) else 'base'}"


def _why_same(case: SpeedCase) -> str:
    return "cannot have changed: it is compared with itself" if case.is_control else "the generated code is the same"


def _percent(ratio: float) -> str:
    """1.05 and 0.95 as "5.0 %"."""
    return f"{100 * abs(ratio - 1):.1f} %"
