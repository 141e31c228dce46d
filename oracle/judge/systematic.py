"""Find systematic errors: tensors whose elements are each close, but together too large, too inexact or truncated.

A tolerance bounds single elements, and so it admits a bfloat16 result that is 1 % too large everywhere. The errors of many
elements together, in units of the last place (ULP) and compared with eager's own errors, tell that from rounding. Three rules:

- **bias**: rounding errors have both signs. The mean error, and the mean error away from zero, must not be larger than eager's
  by more than a tenth of an ULP and five standard errors. In float32 an excess of up to 0.3 ULP is advisory, since good
  functions have it. In dtypes of few digits (float16 and shorter) the mean error away from zero is a slope over the
  significand, since a relative error is twice as many ULPs at 1.99 as at 1.0;
- **spread**: the errors without that mean must not typically be twice eager's (three times in float32, where that is advisory: a
  compiler may use a less exact exponential);
- **exactness**: if every element of eager equals fp64, so must the subject; and low bits that vary in eager's results and in
  fp64 must not all be cleared.

An error is divided by how far rounding noise moves the element in eager, if that is more than an ULP: a sum that cancels has few
correct digits. An error that many elements share (of a norm that divides a row) is no bias either: the standard error is at
least what noise does to the same mean. Elements with the same fp64 value count once.

Without a wider dtype (float64, and programs that cannot be widened) errors are measured from eager instead. Eager's own bias is
then unknown, so the mean must exceed a whole ULP, or the typical ULPs of noise, and the spread is not tested. The mean is not
tested either if noise moves all elements as one, as where one sum is added to all: that is one error, on both sides.

Errors that eager's other kernels have too are excused: its plain loops add up bfloat16 convolutions in bfloat16.

At least 32 distinct values are needed, and elements that are zero, subnormal, not finite or beyond the dtype's range do not
count. Of large tensors a random sample is tested, always the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from oracle.judge.elements import is_float, widen
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.ulp import bits_of
from oracle.verdict import BiasSum

FEWEST = 32  # distinct fp64 values below which nothing is tested
SAMPLE = 1 << 14  # elements tested of larger tensors
BIAS_ALLOWANCE = 0.1  # ULP by which a bias may be larger than eager's, whatever the number of elements
BIAS_ALLOWANCE_FROM_EAGER = 1.0  # the same if errors are measured from eager
# Excess bias that is advisory in float32: good functions have a part of an ULP (Inductor's expm1 has 0.2, a product with 0.001
# in place of a division by 1000 has 0.4). Three of 2 400 random programs on Inductor had such a bias, and none a larger one.
BIAS_OF_FUNCTIONS = 0.3
STANDARD_ERRORS = 5.0
_CHANCE = 3e-7  # probability of five standard errors, one-sided
_FEW_DIGITS = 2.0**-10  # dtypes with at least this eps have few digits
_ROUNDED_QUARTILE = 0.375  # 75th percentile of |error| of correct rounding, which is uniform between -1/2 and 1/2
_ROUNDED_RMS = 0.29  # its root mean square
_STEADY = 2.0  # ULP: in float32 the spread is taken over elements that noise moves no further
_CLEARED, _NOT_CLEARED = (
    0.98,
    0.80,
)  # low bits are cleared if at least 98 % of elements have zeros there, and below 80 % of eager's have the same bits there
_LOW_BITS = (4, 2, 1)
_TOGETHER = 4.0  # with fewer independent errors, a mean of errors tells no more than a single one
_EVEN = 0.5  # mean distance of eager and subject, in ULP, up to which errors are tolerated if their signs even out
_SCREENED_ERRORS = 3.0


class Rule(str, Enum):
    """A kind of systematic error."""

    BIAS = "bias"
    SPREAD = "spread"
    EXACTNESS = "exactness"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Statistics of the errors of eager or of the subject, in ULP."""

    shift: float  # mean error
    growth: float  # mean error away from zero; in dtypes of few digits the one at a significand of 1
    spread: float  # without the growth: root mean square error; in dtypes of few digits the 75th percentile of absolute errors


@dataclass(frozen=True, slots=True, kw_only=True)
class SystematicReport:
    """Result of the test of one tensor. `detail` follows the tensor's path in a symptom."""

    rule: Rule | None = None
    detail: str = ""
    is_advisory: bool = False  # mentioned in the verdict, but no finding
    n_eff: int = 0  # distinct reference values among the elements tested
    subject: ErrorFigures | None = None  # None if nothing was measured
    eager: ErrorFigures | None = None
    limit: float | None = None  # the limit that was exceeded, in the rule's unit
    bias: BiasSum | None = None  # this tensor's bias, to be added up over tensors; None if it was not measured
    excused: str = ""  # the detail of an error that eager's other kernels have too
    abstained: str = ""  # why nothing, or not everything, was measured


def systematic_error(
    eager: Tensor,
    subject: Tensor,
    truth: Tensor | None,
    noise: Sequence[Tensor] = (),
    other_kernels: Callable[[], Iterable[Tensor | None]] = tuple,
) -> SystematicReport:
    """Test whether the subject's errors are those of rounding. Takes strided CPU tensors of one shape and one float dtype.

    `truth` is eager's result in fp64 (complex128), of the same shape. If it is None or not wider than eager's dtype, errors are
    measured from eager, which needs `noise`: eager's results under rounding noise (those of another shape or dtype are ignored).
    `other_kernels` returns eager's results by other kernels, and is called only if an error is found: one of them, in eager's
    place, may excuse it. Raises TypeError if the dtypes differ or are no floats.
    """
    report = _compare_errors(eager, subject, truth, noise)
    if report.rule is None:
        return report
    for other in other_kernels():
        if other is None or other.shape != eager.shape or other.dtype != eager.dtype:
            continue
        if _compare_errors(other, subject, truth, noise).rule is None:
            excused = f"{report.detail}, and eager's other kernels err as much"
            return replace(report, rule=None, detail="", is_advisory=False, limit=None, excused=excused)
    return report


def _compare_errors(eager: Tensor, subject: Tensor, truth: Tensor | None, noise: Sequence[Tensor]) -> SystematicReport:
    if eager.dtype != subject.dtype or not is_float(eager.dtype) or eager.shape != subject.shape:
        raise TypeError(
            f"systematic error of {eager.dtype} {tuple(eager.shape)} and {subject.dtype} {tuple(subject.shape)}, "
            "but should be one float dtype and shape"
        )
    row = TABLE[eager.dtype]
    if eager.dtype is torch.float8_e8m0fnu:
        return SystematicReport(abstained="powers of two have no last place")
    if eager.numel() < FEWEST:
        return SystematicReport(abstained=f"fewer than {FEWEST} elements")
    if not _is_wider(truth, eager):
        truth = None
    runs = [run for run in noise if run.shape == eager.shape and run.dtype == eager.dtype]
    sample = _sample(eager.numel())
    sides = _Sides.of(eager, subject, truth, runs, sample, row)
    exactness = _exactness(eager, subject, truth, sides)
    if exactness is not None:
        return exactness
    if truth is None and not runs:
        return SystematicReport(n_eff=sides.n_eff, abstained="neither a wider dtype nor noise to measure errors with")
    if sides.n_eff < FEWEST:
        return SystematicReport(n_eff=sides.n_eff, abstained=f"fewer than {FEWEST} distinct values")
    return _Measured(sides).report()


def may_be_systematic(eager: Tensor, subject: Tensor) -> bool:
    """Whether `systematic_error` is worth its runs in fp64 and under noise; looks at eager and the subject only.

    False if the differences are too small for a bias or a spread: at most a tenth of an ULP on average, or half an ULP if the
    signs even out. This misses a bias of elements that noise moves by many ULPs among more that it does not move, and a subject
    that is not exact where eager is, if the differences are that small.
    """
    row = TABLE[eager.dtype]
    if eager.numel() < FEWEST or eager.dtype is torch.float8_e8m0fnu:
        return False
    sides = _Sides.of(eager, subject, None, (), _sample(eager.numel()), row)
    elements = sides.eager.numel()
    if elements < FEWEST:
        return False
    difference = (sides.subject - sides.eager) / sides.unit
    size = float(difference.abs().mean())
    if _exactness(eager, subject, None, sides) is not None:
        return True
    if size <= BIAS_ALLOWANCE:
        return False
    if size > _EVEN:
        return True
    error = float(difference.std()) / math.sqrt(max(sides.n_eff, 1))
    bias = max(abs(float(signed.mean())) for signed in (difference, difference * sides.eager.sign()))
    return bias > BIAS_ALLOWANCE / 2 + _SCREENED_ERRORS * error


def _is_wider(truth: Tensor | None, eager: Tensor) -> bool:
    return (
        truth is not None
        and truth.shape == eager.shape
        and is_float(truth.dtype)
        and truth.is_complex() == eager.is_complex()
        and TABLE[truth.dtype].eps < TABLE[eager.dtype].eps
    )


def _sample(elements: int) -> Tensor | None:
    """Flat indices of the elements to test, drawn with replacement; None for all."""
    if elements <= SAMPLE:
        return None
    return torch.randint(elements, (SAMPLE,), generator=torch.Generator().manual_seed(0))


def _taken(tensor: Tensor, sample: Tensor | None) -> Tensor:
    flat = tensor.reshape(-1)
    return flat if sample is None else flat[sample]


def _parts(tensor: Tensor) -> Tensor:
    """The tensor in float64; a complex number becomes its real and its imaginary part, side by side."""
    wide = widen(tensor)
    return torch.view_as_real(wide.resolve_conj()).reshape(-1) if wide.is_complex() else wide


def _real_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """The elements that are tested: eager's, the subject's and those of the reference, as 1-d float64 tensors."""

    row: ToleranceRow
    dtype: torch.dtype  # for complex tensors the dtype of a part
    eager: Tensor
    subject: Tensor
    reference: Tensor  # fp64, or eager without a wider dtype
    noise: tuple[Tensor, ...]
    unit: Tensor  # one ULP at the reference
    has_truth: bool  # the reference is fp64
    n_eff: int  # number of distinct reference values

    @classmethod
    def of(
        cls,
        eager: Tensor,
        subject: Tensor,
        truth: Tensor | None,
        noise: Sequence[Tensor],
        sample: Tensor | None,
        row: ToleranceRow,
    ) -> _Sides:
        dtype = _real_dtype(eager.dtype)
        e, s = _parts(_taken(eager, sample)), _parts(_taken(subject, sample))
        t = e if truth is None else _parts(_taken(truth, sample))
        runs = [_parts(_taken(run, sample)) for run in noise]
        size = t.abs()
        if eager.is_complex():  # both parts of a complex number are measured in ULPs of the larger part
            size = size.reshape(-1, 2).amax(-1, keepdim=True).expand(-1, 2).reshape(-1)
        keep = (size >= row.smallest_normal) & (t.abs() <= torch.finfo(dtype).max) & (t != 0)
        for side in (e, s, *runs):
            keep &= side.isfinite() & (side != 0)
        t = t[keep]
        return cls(
            row=row,
            dtype=dtype,
            eager=e[keep],
            subject=s[keep],
            reference=t,
            noise=tuple(run[keep] for run in runs),
            unit=torch.ldexp(torch.full_like(t, row.eps), torch.frexp(size[keep]).exponent - 1),
            has_truth=truth is not None,
            n_eff=t.unique().numel(),
        )

    @property
    def has_few_digits(self) -> bool:
        return self.row.eps >= _FEW_DIGITS


# ------------------------------------------------------------------------------------------------------------- exactness


def _exactness(eager: Tensor, subject: Tensor, truth: Tensor | None, sides: _Sides) -> SystematicReport | None:
    if sides.n_eff < FEWEST:
        return None
    if sides.has_truth and torch.equal(sides.eager, sides.reference):
        wrong = int((sides.subject != sides.reference).sum())
        if wrong:
            return SystematicReport(
                rule=Rule.EXACTNESS,
                detail=f" is not exact in {_count(wrong)} of {_count(sides.eager.numel())} elements, where eager gives "
                "exactly what fp64 gives",
                n_eff=sides.n_eff,
                limit=0.0,
            )
    digits = round(-math.log2(sides.row.eps))
    held = sides.reference.to(sides.dtype)
    for count in _LOW_BITS:
        if count >= digits:
            continue
        subject, *others = (_low_bits(side.to(sides.dtype), count) for side in (sides.subject, sides.eager, held))
        share = _cleared(subject)
        if share >= _CLEARED and max(map(_largest_share, others)) < _NOT_CLEARED:
            return SystematicReport(
                rule=Rule.EXACTNESS,
                detail=f" has the last {f'{count} bits' if count > 1 else 'bit'} of its significands cleared in "
                f"{share:.0%} of {_count(sides.eager.numel())} elements, eager in {_cleared(others[0]):.0%}",
                n_eff=sides.n_eff,
                limit=_CLEARED,
            )
    return None


def _low_bits(values: Tensor, count: int) -> Tensor:
    return bits_of(values) & ((1 << count) - 1)


def _cleared(patterns: Tensor) -> float:
    """Share of the elements whose low bits are zero."""
    return float((patterns == 0).double().mean())


def _largest_share(patterns: Tensor) -> float:
    """Share of the elements that have the most frequent pattern.

    Where a large number was added to all elements, all have its low bits. A sum in another order may end in zeros by chance.
    """
    return float(patterns.unique(return_counts=True)[1].max()) / patterns.numel()


# ------------------------------------------------------------------------------------------------------- bias and spread


class _Measured:
    """Errors of the tested elements, in ULP and in units of how far noise moves them. Used once."""

    def __init__(self, sides: _Sides) -> None:
        self.sides = sides
        self.moved = torch.ones_like(sides.unit)  # how far noise moves an element, in ULP; at least one
        for run in sides.noise:
            self.moved = torch.maximum(self.moved, (run - sides.eager).abs() / sides.unit)
        self.sign = sides.reference.sign()
        # an error in ULP is a relative error, in units of eps, times this
        self.significand = sides.reference.abs() / sides.unit * sides.row.eps
        self.subject, self.eager = self._errors(sides.subject), self._errors(sides.eager)
        self.runs = [self._errors(run) for run in sides.noise]

    def _errors(self, side: Tensor) -> Tensor:
        return (side - self.sides.reference) / self.sides.unit

    # -- statistics: each a weighted mean of errors, sum(weight * error) / sum(weight * regressor)

    def _shift(self, errors: Tensor) -> tuple[float, float]:
        """Mean error and its standard error, both in units of how far noise moves an element."""
        return self._mean(errors / self.moved, torch.ones_like(errors))

    def _growth(self, errors: Tensor) -> tuple[float, float]:
        scaled = errors * self.sign / self.moved
        return self._mean(
            scaled, self.significand / self.moved if self.sides.has_few_digits else torch.ones_like(errors)
        )

    def _mean(self, values: Tensor, on: Tensor) -> tuple[float, float]:
        """Slope of `values` over `on` through the origin, and its standard error with `n_eff` values counted."""
        squares = on.square().sum()
        slope = (values * on).sum() / squares
        residual = ((values - slope * on) * on).square().sum().sqrt() / squares
        factor = math.sqrt(values.numel() / self.sides.n_eff)
        return float(slope), float(residual) * factor

    def _standard_error(self, statistic: str) -> float:
        measure = getattr(self, statistic)
        at_eager = measure(self.eager)[0]
        own = measure(self.subject)[1]
        moved = [measure(run) for run in self.runs]
        if not moved:
            return own
        shared = math.sqrt(sum((mean - at_eager) ** 2 for mean, _ in moved) / len(moved))
        typical = sum(error for _, error in moved) / len(moved)
        return max(own, shared * min(1.0, own / typical) if typical > 0 else shared)

    def _moves_together(self, sign: Tensor | float) -> bool:
        """Whether noise moves all elements as one, as where one sum is added to all: their errors are one observation.

        The variance of the mean of N independent movements is their variance over N, so the ratio tells N.
        """
        moves = [(run - self.eager) * sign / self.moved for run in self.runs]
        squares = sum(float(move.square().mean()) for move in moves)
        of_means = sum(float(move.mean()) ** 2 for move in moves)
        return of_means > 0 and squares / of_means < _TOGETHER

    def _without_growth(self, errors: Tensor) -> Tensor:
        return errors - self._growth(errors)[0] * self.sign * (self.significand if self.sides.has_few_digits else 1.0)

    def _is_wider_than(self, limit: float) -> bool:
        """Whether significantly more than a quarter of the subject's errors are larger than the limit."""
        from scipy.stats import binomtest  # noqa: PLC0415  a second of imports, needed only if an error is likely

        share = float((self._without_growth(self.subject).abs() > limit).double().mean())
        n_eff = self.sides.n_eff
        return bool(binomtest(round(share * n_eff), n_eff, 0.25, alternative="greater").pvalue < _CHANCE)

    def _spread(self, errors: Tensor) -> float | None:
        errors = self._without_growth(errors)
        if self.sides.has_few_digits:
            return float(torch.quantile(errors.abs(), 0.75))
        steady = errors[self.moved <= _STEADY]
        return float(steady.square().mean().sqrt()) if steady.numel() >= FEWEST else None

    # -- the report

    def report(self) -> SystematicReport:
        figures = {
            name: ErrorFigures(
                shift=self._shift(errors)[0],
                growth=self._growth(errors)[0],
                spread=self._spread(errors) or 0.0,
            )
            for name, errors in (("subject", self.subject), ("eager", self.eager))
        }
        subject, eager = figures["subject"], figures["eager"]
        growth_error = self._standard_error("_growth")
        n_eff = self.sides.n_eff
        bias = BiasSum(
            dtype=str(self.sides.dtype).removeprefix("torch."),
            eps=self.sides.row.eps,
            tensors=1,
            weight=n_eff,
            subject=n_eff * subject.growth,
            eager=n_eff * eager.growth,
            variance=(n_eff * growth_error) ** 2,
        )
        rule, detail, limit, is_small = (
            self._bias(subject, eager, growth_error) or self._too_wide(subject, eager) or (None, "", None, False)
        )
        return SystematicReport(
            rule=rule,
            detail=detail,
            is_advisory=is_small and not self.sides.has_few_digits,
            n_eff=n_eff,
            subject=subject,
            eager=eager,
            limit=limit,
            bias=bias if self.sides.has_truth else None,
            abstained="" if self.sides.has_truth else "no wider dtype: errors are measured from eager",
        )

    def _bias(
        self, subject: ErrorFigures, eager: ErrorFigures, growth_error: float
    ) -> tuple[Rule, str, float, bool] | None:
        """The bias that exceeds its limit most: rule, detail, limit, and whether good functions have such a bias."""
        allowance = BIAS_ALLOWANCE if self.sides.has_truth else BIAS_ALLOWANCE_FROM_EAGER
        beyond: list[tuple[float, str, float]] = []
        for mine, its, error, sign, words in (
            (subject.growth, eager.growth, growth_error, self.sign, ("away from zero", "towards zero")),
            (subject.shift, eager.shift, self._standard_error("_shift"), 1.0, ("too large", "too small")),
        ):
            if not self.sides.has_truth and self._moves_together(sign):
                continue  # one error, which the tolerance of single elements admits; eager's own may be as large
            limit = abs(its) + allowance + STANDARD_ERRORS * error
            if abs(mine) > limit:
                beyond.append((abs(mine) - limit, self._bias_text(mine, its, limit, words[mine < 0]), limit))
        if not beyond:
            return None
        excess, text, limit = max(beyond, key=lambda one: one[0])
        return Rule.BIAS, text, limit, self.sides.has_truth and excess <= BIAS_OF_FUNCTIONS

    def _bias_text(self, mine: float, its: float, limit: float, word: str) -> str:
        unit = "ulp" if float(self.moved.mean()) < 1.5 else "times its rounding noise"
        against = f", eager {its:.2g}" if self.sides.has_truth else " beside eager"
        return (
            f" has errors of one sign: on average {abs(mine):.2g} {unit} {word} in {_count(self.subject.numel())} "
            f"elements{against} (limit {limit:.2g})"
        )

    def _too_wide(self, subject: ErrorFigures, eager: ErrorFigures) -> tuple[Rule, str, float, bool] | None:
        if not self.sides.has_truth:
            return None
        if self.sides.has_few_digits:
            limit, name = 2 * max(_ROUNDED_QUARTILE, eager.spread), "a quarter of its errors above"
        else:
            limit, name = 3 * max(_ROUNDED_RMS, eager.spread), "a root mean square error of"
        if subject.spread <= limit or (self.sides.has_few_digits and not self._is_wider_than(limit)):
            return None
        detail = f" has {name} {subject.spread:.2g} ulp, eager {eager.spread:.2g} (limit {limit:.2g})"
        return Rule.SPREAD, f"{detail}, in {_count(self.subject.numel())} elements", limit, True


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")
