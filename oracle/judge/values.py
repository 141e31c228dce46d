"""Values of two plain tensors of one shape and dtype: are the subject's as good as eager's?

Exact for integers and bools. For floats three bounds, each computed only for the elements that failed the one before, because
the first needs nothing, the second a run in fp64, the third several runs under noise:

1. close to eager under the dtype's tolerance row;
2. against fp64: `|subject - truth| <= k * max(|eager - truth|, eps * |truth|)`. Where eager is NaN or infinite only for want of
   range, agreement with fp64 is agreement, and so is another overflow on the way to a number that the dtype could hold.
   The run in fp64 may give eager's own dtype: where eager computes in float16 what it returns in float64, or a tensor that
   cannot be widened decides. This *twin* says something of elements where it disagrees with eager, and of no others;
3. against noise: `|subject - eager| <= k * spread`, where `spread` is how far eager's own runs under rounding noise move that
   element. This is what allows a reduction in another order whose terms cancel: the relative error of a sum near zero is
   unbounded, and no fixed tolerance is right. Few runs can hit the same rounding by chance, so an element that
   moves at all is lent the tensor's typical spread, though never more than 16 times its own: a tensor that holds
   large noisy values beside small exact ones must not hide errors among the small ones.

Noise decides integers, too: an element that eager's noise (or fp64) flips is a discontinuity, a comparison of two nearly equal
floats upstream. It is *unstable*: left out and counted. So is a float that noise turns into NaN or infinity.

What still fails is shown *loud* noise, `k` times as large: a jump (round, floor, a comparison) has no slope to multiply by `k`,
so whether an error of `k` times the noise upstream would cross it can only be tried.

What fails even then is held against eager's *other* kernels (scalar loops, no mkldnn; vector loops): an element that these give
as the subject does, and not as eager does, is one that eager gives in either way, by its position in memory or the library
at hand.

The root mean square error against fp64 is bounded apart from the elements, unstable ones left out.

Note [scale]: the bound of an element uses its own magnitude only, `eps * |truth|`. The scale of the whole tensor enters in two
places: as the lent spread of step 3, and, when there are no noise runs at all, as the median error of eager against fp64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oracle.judge.elements import (
    READABLE,
    distance,
    element_text,
    finite,
    finite_or_none,
    index_text,
    is_close,
    is_float,
    is_identical,
    is_same_special,
    number_text,
    unravel,
    usable_noise,
    widen,
)
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.ulp import CHUNK, bits_of, max_ulp
from oracle.verdict import WorstElement

_LENT = 16.0  # see the module docstring, step 3
_SAMPLE = 1 << 16  # elements a median is taken over


_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """What was found about the values of one tensor. `detail` is written to follow the tensor's path in a symptom."""

    is_right: bool
    detail: str = ""  # "[1, 2] is 3.5, but should be 3.0 (...)"
    worst: WorstElement | None = None  # its `where` is filled in by the caller
    elements: int = 0
    unstable: int = 0
    explained: tuple[str, ...] = ()
    max_ulp: float | None = None  # None for integers
    wrong_elements: Tensor = field(default_factory=lambda: _NOTHING, compare=False)  # flat indices


TruthSource = Callable[[], "Tensor | None"]
NoiseSource = Callable[[], Sequence[Tensor]]
OthersSource = Callable[[], "Iterable[Tensor | None]"]


def no_truth() -> Tensor | None:
    return None


def no_noise() -> Sequence[Tensor]:
    return ()


def compare_values(
    eager: Tensor,
    subject: Tensor,
    *,
    truth: TruthSource = no_truth,
    noise: NoiseSource = no_noise,
    loud: NoiseSource = no_noise,
    relaid: OthersSource | None = no_noise,
    zero_signs: bool = True,
    row: ToleranceRow | None = None,
    flushes_denormals: bool = False,
) -> ValueReport:
    """Two strided tensors of one shape and dtype, any dtype. `truth`, `noise`, `loud` are called in this order, if needed.
    `relaid` gives eager's values by its other kernels, for what nothing else excuses, and for signs of zeros. None: those signs
    are not compared, and nothing is excused. Without `zero_signs` they are not compared either.

    What they give may have another shape, or a dtype that is not wider: then it is no ground truth for this tensor.
    `row` replaces the dtype's row (for Python numbers). With `flushes_denormals` subnormal numbers equal zeros.
    """
    elements = eager.numel()
    floats = is_float(eager.dtype)
    if elements == 0 or is_identical(eager, subject):
        return ValueReport(is_right=True, elements=elements, max_ulp=0.0 if floats else None)
    if not floats:
        return _compare_exact(eager, subject, truth, (noise, loud), relaid or no_noise)
    return _FloatComparison(
        eager,
        subject,
        row=row or TABLE[eager.dtype],
        truth=truth,
        noise=noise,
        loud=loud,
        relaid=relaid,
        zero_signs=zero_signs and relaid is not None,
        flushes_denormals=flushes_denormals,
    ).run()


# ------------------------------------------------------------------------------------------------------ integers and bools


def _compare_exact(
    eager: Tensor, subject: Tensor, truth: TruthSource, noises: Sequence[NoiseSource], relaid: OthersSource
) -> ValueReport:
    left, right = _comparable(eager), _comparable(subject)
    wrong = (left != right).nonzero().squeeze(-1)
    flipped = torch.zeros(wrong.numel(), dtype=torch.bool)
    for other in _same_kind((truth(),), eager):
        flipped |= _comparable(other)[wrong] != left[wrong]
    for noise in noises:
        if bool(flipped.all()):  # noise costs several runs: asked last
            break
        for other in _same_kind(noise(), eager):
            flipped |= _comparable(other)[wrong] != left[wrong]
    by_noise = int(flipped.sum())
    if not bool(flipped.all()):
        for other in _same_kind(list(relaid()), eager):
            flipped |= _comparable(other)[wrong] == right[wrong]
    unstable = int(flipped.sum())
    explained = tuple(
        f" {text}"
        for count, text in (
            (
                by_noise,
                f"differs in {by_noise} of {eager.numel()} elements that eager itself flips under rounding noise or in fp64",
            ),
            (
                unstable - by_noise,
                f"has {unstable - by_noise} of {eager.numel()} elements as eager's other kernels give them",
            ),
        )
        if count
    )
    wrong = wrong[~flipped]
    if wrong.numel() == 0:
        return ValueReport(is_right=True, elements=eager.numel(), unstable=unstable, explained=explained)
    eager_values, subject_values = eager.reshape(-1), subject.reshape(-1)
    distance = (_as_double(subject_values, wrong) - _as_double(eager_values, wrong)).abs()
    flat = int(wrong[distance.argmax()])
    seen, expected = element_text(subject_values, flat), element_text(eager_values, flat)
    index = unravel(flat, eager.shape)
    return ValueReport(
        is_right=False,
        detail=f"{index_text(index)} is {seen}, but should be {expected} ({wrong.numel()} of {eager.numel()} elements differ)",
        worst=WorstElement(
            where="", index=index, eager=expected, subject=seen, subject_error=float(distance.max()), allowed_error=0.0
        ),
        elements=eager.numel(),
        unstable=unstable,
        explained=explained,
        wrong_elements=wrong,
    )


def _comparable(tensor: Tensor) -> Tensor:
    """Flat, and of a dtype that can be compared: unsigned and packed ones by their bits."""
    flat = tensor.reshape(-1)
    return flat if flat.dtype is torch.bool else bits_of(flat)


def _same_kind(others: Sequence[Tensor | None], eager: Tensor) -> list[Tensor]:
    return [
        other for other in others if other is not None and other.shape == eager.shape and other.dtype == eager.dtype
    ]


def _as_double(flat: Tensor, index: Tensor) -> Tensor:
    values = flat[index] if flat.dtype in READABLE else bits_of(flat)[index]
    return values.to(torch.float64)


# ------------------------------------------------------------------------------------------------------------------ floats


class _FloatComparison:
    """The three bounds and the root mean square error, for one pair of tensors. Used once; holds what was found so far."""

    def __init__(
        self,
        eager: Tensor,
        subject: Tensor,
        *,
        row: ToleranceRow,
        truth: TruthSource,
        noise: NoiseSource,
        loud: NoiseSource,
        relaid: OthersSource | None,
        zero_signs: bool,
        flushes_denormals: bool,
    ) -> None:
        self.shape, self.dtype = eager.shape, eager.dtype
        self.eager, self.subject = eager.reshape(-1), subject.reshape(-1)
        self.elements = eager.numel()
        self.row = row
        # 2x, because eager may lie just below the smallest normal number and the subject just above.
        self.atol = max(row.atol, 2 * row.smallest_normal if flushes_denormals else 0.0)
        self.truth_source, self.noise_source, self.loud_source, self.relaid_source = truth, noise, loud, relaid
        self.zero_signs = zero_signs
        self.explained: list[str] = []
        self.unstable = self.wrong = _NOTHING  # flat indices
        self.excused = _NOTHING  # of elements with an error that is not rounding: no part of the root mean square

    def run(self) -> ValueReport:
        suspects, zero_flips, ulp = self._far_from_eager()
        zero_finding = self._zero_sign_finding(zero_flips) if zero_flips.numel() and self.zero_signs else None
        if suspects.numel():
            truth, twin = self._usable_truth()
            finding = self._judge(suspects, truth, twin)
        else:
            finding = None
        finding = finding or zero_finding
        return ValueReport(
            is_right=finding is None,
            detail=finding[0] if finding else "",
            worst=finding[1] if finding else None,
            elements=self.elements,
            unstable=self.unstable.numel(),
            explained=tuple(self.explained),
            max_ulp=ulp,
            wrong_elements=self.wrong,
        )

    # -- bound 1

    def _far_from_eager(self) -> tuple[Tensor, Tensor, float]:
        """Flat indices of elements outside the tolerance row, those of zeros whose sign differs, and the largest ULP."""
        far, flips, ulp = [], [], 0.0
        for start in range(0, self.elements, CHUNK):
            eager, subject = self.eager[start : start + CHUNK], self.subject[start : start + CHUNK]
            if is_identical(eager, subject):
                continue
            e, s = widen(eager), widen(subject)
            is_far = ~is_close(e, s, rtol=self.row.rtol, atol=self.atol)
            if bool(is_far.any()):
                far.append(is_far.nonzero().squeeze(-1) + start)
            if not e.is_complex():
                # A complex zero has four signs and its operations leave them to the implementation.
                flip = (e == 0) & (s == 0) & (e.signbit() != s.signbit())
                if bool(flip.any()):
                    flips.append(flip.nonzero().squeeze(-1) + start)
            ulp = max(ulp, max_ulp(eager, subject))
        return torch.cat(far) if far else _NOTHING, torch.cat(flips) if flips else _NOTHING, ulp

    # -- bounds 2 and 3

    def _judge(self, suspects: Tensor, truth: Tensor | None, twin: Tensor | None) -> tuple[str, WorstElement] | None:
        row = self.row
        e, s = widen(self.eager[suspects]), widen(self.subject[suspects])
        t = widen(truth[suspects]) if truth is not None else None
        reference, error, floor, is_right = self._against_truth(e, s, t)
        if twin is not None:
            is_right = self._nearer_to_twin(e, s, widen(twin[suspects]))
            self.excused = suspects[is_right]
        if (t is not None or twin is not None) and bool(is_right.any()):
            self.explained.append(
                f" has {int(is_right.sum())} of {self.elements} elements outside the tolerance row that are no further from fp64 "
                f"than {row.k:g} times eager's own error or precision"
            )
        rmse = self._rmse(truth) if truth is not None else None
        needs_noise = not bool(is_right.all()) or (rmse is not None and rmse.is_exceeded(row))
        runs = usable_noise(self.noise_source(), self.shape, self.dtype) if needs_noise else []
        allowed = torch.maximum(row.k * floor, row.rtol * finite(e.abs())) + self.atol
        if runs and not bool(is_right.all()):
            spread, unstable = self._spread(suspects, e, runs)
            unstable &= ~is_right
            spread = torch.maximum(spread, (_LENT * spread).clamp_max(self._typical_spread(runs)))
            allowed = torch.maximum(allowed, row.k * spread + self.atol)
            # Both are ground truths of a kind: noise is a spread around eager, and fp64 lies within it or is the better one.
            error = torch.fmin(error, distance(s, e))
            by_noise = ~is_right & ~unstable & (error <= allowed) & error.isfinite()
            without_digits = by_noise & (spread >= e.abs())
            if bool(by_noise.any()):
                self.explained.append(
                    f" has {int(by_noise.sum())} of {self.elements} elements that differ by no more than {row.k:g} times "
                    "what rounding noise in eager moves them"
                )
            if bool(unstable.any()):
                self.explained.append(
                    f" has {int(unstable.sum())} of {self.elements} elements that rounding noise in eager turns to NaN or "
                    "to infinity"
                )
            self.unstable = suspects[unstable | without_digits]
            self.excused = torch.cat([self.excused, self.unstable])
            is_right |= by_noise | unstable
            if not bool(is_right.all()):
                is_right |= self._judge_loud(suspects, is_right, e, error)
        elif not runs and t is not None and not bool(is_right.all()):
            allowed = allowed.clamp_min(row.k * self._typical_eager_error(truth) + self.atol)
            is_right |= (error <= allowed) & error.isfinite()
        if not bool(is_right.all()):
            is_right |= self._as_other_kernels(suspects, is_right, e, s)
        if not bool(is_right.all()):
            self.wrong = suspects[~is_right]
            return self._element_finding(suspects, is_right, e, s, t, error, allowed)
        if truth is not None and self.excused.numel():
            rmse = self._rmse(truth)
        if rmse is not None and rmse.is_exceeded(row):
            noise_rmse = max((self._noise_rmse(run) for run in runs), default=0.0)
            if rmse.is_exceeded(row, noise=noise_rmse):
                return self._rmse_finding(suspects, s, e, t, reference, rmse, noise_rmse)
        return None

    def _judge_loud(self, suspects: Tensor, is_right: Tensor, e: Tensor, error: Tensor) -> Tensor:
        """Which of the elements still wrong are moved as far, or to NaN or infinity, by noise of `k` times the size."""
        runs = usable_noise(self.loud_source(), self.shape, self.dtype)
        spread, unstable = self._spread(suspects, e, runs)
        excused = ~is_right & (unstable | ((spread > 0) & (error <= spread + self.atol)))
        if bool(excused.any()):
            self.explained.append(
                f" has {int(excused.sum())} of {self.elements} elements that noise of {self.row.k:g} times eager's rounding "
                "moves as far"
            )
            self.excused = torch.cat([self.excused, suspects[excused]])
            self.unstable = torch.cat([self.unstable, suspects[excused & (unstable | (spread >= e.abs()))]])
        return excused

    def _as_other_kernels(self, suspects: Tensor, is_right: Tensor, e: Tensor, s: Tensor) -> Tensor:
        """Which of the elements still wrong are what eager's other kernels give, where these disagree with eager.

        Or NaN, where eager is finite and the others infinite: something overflows on the way, and what it meets there is open.
        """
        excused = torch.zeros(e.shape, dtype=torch.bool)
        for other in self._other_kernels():
            value = widen(other[suspects])
            disagrees = ~is_close(value, e, rtol=self.row.rtol, atol=self.atol)
            overflows = e.isfinite() & value.isinf() & s.isnan()
            excused |= ~is_right & disagrees & (is_close(value, s, rtol=self.row.rtol, atol=self.atol) | overflows)
            if bool((is_right | excused).all()):
                break
        if bool(excused.any()):
            self.explained.append(
                f" has {int(excused.sum())} of {self.elements} elements as eager's other kernels give them"
            )
            self.excused = torch.cat([self.excused, suspects[excused]])
        return excused

    def _other_kernels(self) -> Iterator[Tensor]:
        for other in self.relaid_source() if self.relaid_source is not None else ():
            yield from usable_noise([] if other is None else [other], self.shape, self.dtype)

    def _against_truth(self, e: Tensor, s: Tensor, t: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Reference value, error of the subject, error that eager is entitled to (before `k`), and who is right by bound 2."""
        if t is None:
            reference = e
            return reference, distance(s, e), self.row.eps * finite(e.abs()), torch.zeros(e.shape, dtype=torch.bool)
        # The truth as eager's dtype can hold it: 1e5 is infinite in float16.
        held = widen(t.to(self.dtype))
        no_truth_here = ~t.isfinite() & e.isfinite() & s.isfinite()
        reference = torch.where(no_truth_here, e, t)
        error = distance(s, reference)
        eager_error = finite(distance(e, reference))
        floor = torch.maximum(eager_error, self.row.eps * finite(reference.abs()))
        is_right = (error <= self.row.k * floor + self.atol) & error.isfinite() & ~no_truth_here
        is_right |= is_same_special(s, held)
        is_right |= held.isfinite() & ~e.isfinite() & ~s.isfinite()  # which of NaN, -inf and inf is up to the order
        return reference, error, floor, is_right

    def _spread(self, suspects: Tensor, e: Tensor, runs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """How far noise moves each element, and which it turns to NaN or infinity."""
        spread = torch.zeros(e.shape, dtype=torch.float64)
        unstable = torch.zeros(e.shape, dtype=torch.bool)
        for run in runs:
            moved = widen(run[suspects])
            unstable |= (moved.isfinite() != e.isfinite()) | (~e.isfinite() & ~is_same_special(moved, e))
            spread = torch.maximum(spread, finite(distance(moved, e)))
        return spread, unstable

    def _typical_spread(self, runs: Sequence[Tensor]) -> float:
        """Median over the elements that noise moves at all, of a sample spread evenly over the tensor."""
        sample = torch.arange(0, self.elements, max(1, self.elements // _SAMPLE))
        e = widen(self.eager[sample])
        spread, unstable = self._spread(sample, e, runs)
        spread = spread[(spread > 0) & ~unstable]
        return spread.median().item() if spread.numel() else 0.0

    def _typical_eager_error(self, truth: Tensor | None) -> float:
        assert truth is not None
        sample = torch.arange(0, self.elements, max(1, self.elements // _SAMPLE))
        error = distance(widen(self.eager[sample]), widen(truth[sample]))
        error = error[error.isfinite()]
        return error.median().item() if error.numel() else 0.0

    # -- the whole tensor

    def _rmse(self, truth: Tensor) -> _Rmse:
        sums = torch.zeros(5, dtype=torch.float64)
        for start, keep in self._kept():
            stop = start + CHUNK
            s, e, t = widen(self.subject[start:stop]), widen(self.eager[start:stop]), widen(truth[start:stop])
            keep = keep & s.isfinite() & e.isfinite() & t.isfinite()
            squared = distance(s, t)[keep].square()
            sums += torch.stack(
                [
                    squared.sum(),
                    squared.square().sum(),
                    distance(e, t)[keep].square().sum(),
                    t[keep].abs().square().sum(),
                    keep.sum().to(torch.float64),
                ]
            )
        subject, subject_fourth, eager, magnitude, count = sums.tolist()
        return _Rmse(
            subject=math.sqrt(subject / max(count, 1)),
            eager=math.sqrt(eager / max(count, 1)),
            magnitude=math.sqrt(magnitude / max(count, 1)),
            # Participation ratio: errors that are one large one and dust are one element's worth of evidence.
            effective_elements=subject * subject / subject_fourth if subject_fourth > 0 else count,
        )

    def _noise_rmse(self, run: Tensor) -> float:
        total, count = 0.0, 0
        for start, keep in self._kept():
            n, e = widen(run[start : start + CHUNK]), widen(self.eager[start : start + CHUNK])
            keep = keep & n.isfinite() & e.isfinite()
            total += distance(n, e)[keep].square().sum().item()
            count += int(keep.sum())
        return math.sqrt(total / max(count, 1))

    def _kept(self) -> Iterator[tuple[int, Tensor]]:
        """Start of each chunk, and a mask of it without the excused elements."""
        for start in range(0, self.elements, CHUNK):
            keep = torch.ones(min(CHUNK, self.elements - start), dtype=torch.bool)
            if self.excused.numel():
                here = self.excused[(self.excused >= start) & (self.excused < start + CHUNK)]
                keep[here - start] = False
            yield start, keep

    # -- signs of zeros

    def _zero_sign_finding(self, flips: Tensor) -> tuple[str, WorstElement] | None:
        """A zero of the other sign is wrong only where fp64, all noise and another layout agree with eager on zero and sign.

        Eager's vector loops and the scalar ones at their ends differ in it: the 12th of 20 zeros is +0, the 18th -0.
        """
        truth, runs = self.truth_source(), usable_noise(self.noise_source(), self.shape, self.dtype)
        sign = widen(self.eager[flips]).signbit()
        defined = torch.ones(flips.numel(), dtype=torch.bool)
        others = [] if truth is None or truth.shape != self.shape or truth.is_complex() else [truth.reshape(-1)]
        if others and runs:
            runs = [*runs, *self._other_kernels()]
            for other in [*others, *runs]:
                value = widen(other[flips])
                defined &= (value == 0) & (value.signbit() == sign)
            for other in runs:
                value, eager = widen(other), widen(self.eager)
                # one zero that eager's runs disagree on says it of all: which loop an element falls to is its position
                defined &= not bool(((value == 0) & (eager == 0) & (value.signbit() != eager.signbit())).any())
        else:
            defined[:] = False
        if not bool(defined.any()):
            self.explained.append(
                f" has {flips.numel()} of {self.elements} zeros of the other sign, which eager does not define"
            )
            return None
        flat = int(flips[defined][0])
        seen, expected = element_text(self.subject, flat), element_text(self.eager, flat)
        index = unravel(flat, self.shape)
        detail = (
            f"{index_text(index)} is {seen}, but should be {expected} "
            f"(the sign of zero, which fp64 and rounding noise keep; {int(defined.sum())} of {self.elements} elements)"
        )
        return detail, WorstElement(where="", index=index, eager=expected, subject=seen, truth=expected, ulp=0.0)

    # -- words

    def _element_finding(
        self, suspects: Tensor, is_right: Tensor, e: Tensor, s: Tensor, t: Tensor | None, error: Tensor, allowed: Tensor
    ) -> tuple[str, WorstElement]:
        wrong = (~is_right).nonzero().squeeze(-1)
        excess = (error[wrong] / allowed[wrong].clamp_min(self.row.tiny or 1e-300)).nan_to_num(
            nan=math.inf, posinf=math.inf
        )
        at = int(wrong[excess.argmax()])
        worst = self._worst(int(suspects[at]), at, e, s, t, allowed)
        return (
            f"{index_text(worst.index)} is {worst.subject}, but should be {worst.eager}"
            f"{f' (fp64 {worst.truth})' if worst.truth is not None else ''}: error {number_text(worst.subject_error)}, "
            f"allowed {number_text(worst.allowed_error)}; {wrong.numel()} of {self.elements} elements are wrong",
            worst,
        )

    def _rmse_finding(
        self,
        suspects: Tensor,
        s: Tensor,
        e: Tensor,
        t: Tensor | None,
        reference: Tensor,
        rmse: _Rmse,
        noise: float,
    ) -> tuple[str, WorstElement]:
        at = int(finite(distance(s, reference)).argmax())
        bound = rmse.bound(self.row, noise=noise)
        worst = self._worst(int(suspects[at]), at, e, s, t, torch.full((suspects.numel(),), bound, dtype=torch.float64))
        return (
            f".rmse against fp64 is {rmse.subject:.3g}, but should be at most {bound:.3g} "
            f"(eager's is {rmse.eager:.3g}, that of noise {noise:.3g})",
            worst,
        )

    def _worst(self, flat: int, at: int, e: Tensor, s: Tensor, t: Tensor | None, allowed: Tensor) -> WorstElement:
        reference = e[at] if t is None else t[at]
        ulp = max_ulp(self.eager[flat : flat + 1], self.subject[flat : flat + 1])
        both_finite = bool(e[at].isfinite()) and bool(s[at].isfinite())
        return WorstElement(
            where="",
            index=unravel(flat, self.shape),
            eager=element_text(self.eager, flat),
            subject=element_text(self.subject, flat),
            truth=None if t is None else str(t[at].item()),
            eager_error=None if t is None else finite_or_none(distance(e[at], reference)),
            subject_error=finite_or_none(distance(s[at], reference)),
            allowed_error=finite_or_none(allowed[at]),
            ulp=ulp if both_finite else None,
        )

    def _usable_truth(self) -> tuple[Tensor | None, Tensor | None]:
        """Ground truth for every element; or else a twin, of eager's own dtype: see the module docstring."""
        truth = self.truth_source()
        if truth is None or truth.shape != self.shape or not is_float(truth.dtype):
            return None, None
        if truth.is_complex() != self.dtype.is_complex or TABLE[truth.dtype].eps > self.row.eps:
            return None, None
        flat = truth.reshape(-1)
        return (flat, None) if TABLE[truth.dtype].eps < self.row.eps else (None, flat)

    def _nearer_to_twin(self, e: Tensor, s: Tensor, twin: Tensor) -> Tensor:
        """Who is right by bound 2, of the elements about which the twin and eager disagree."""
        differs = ~is_close(twin, e, rtol=self.row.rtol, atol=self.atol)
        return self._against_truth(e, s, twin)[3] & differs & twin.isfinite()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rmse:
    """Root mean squares: of both errors against fp64 and of fp64's magnitude."""

    subject: float
    eager: float
    magnitude: float
    effective_elements: float

    def bound(self, row: ToleranceRow, *, noise: float = 0.0) -> float:
        return row.rmse_factor(self.effective_elements) * max(self.eager, row.eps * self.magnitude, noise, row.tiny)

    def is_exceeded(self, row: ToleranceRow, *, noise: float = 0.0) -> bool:
        return self.subject > self.bound(row, noise=noise)
