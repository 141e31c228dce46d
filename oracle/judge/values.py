"""Compare the values of two plain tensors of one shape and dtype: are the subject's as good as eager's?

Elements with the same bits are right, and so are floats close to eager under the dtype's tolerance row. The witnesses of
oracle.judge.witnesses are asked about the rest, one after the other, each about the elements that no earlier one admitted. An
element that no witness admits is wrong.

An element *says nothing* if a witness would admit 0 as well, if eager returns a number or NaN by chance, or if rounding changes
the integer. Such elements are counted as not compared.

The root mean square error against fp64 has its own bound; elements excused for other reasons than rounding are left out of it.

Note [scale]: the bound of an element depends on its own magnitude only, `eps * |truth|`. The scale of the whole tensor is used in
two places: for the typical spread under noise, and, if there are no runs under noise, for eager's median error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

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
    number_text,
    unravel,
    usable_noise,
    widen,
)
from oracle.judge.rmse import noise_rmse, rmse_of
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.ulp import CHUNK, bits_of, max_ulp
from oracle.judge.witnesses import (
    Fp64,
    LoudNoise,
    Noise,
    OtherKernel,
    Question,
    TypicalError,
    Whole,
    Witness,
    holds_integers,
)
from oracle.verdict import WorstElement

_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """Result of comparing the values of one tensor. `detail` follows the tensor's path in a symptom."""

    is_right: bool
    detail: str = ""  # "[1, 2] is 3.5, but should be 3.0 (...)"
    worst: WorstElement | None = None  # its `where` is filled in by the caller
    elements: int = 0
    unstable: int = 0  # elements that differ and say nothing, because eager's own runs differ there
    witnesses: Counter[str] = field(default_factory=Counter)  # witness -> number of elements it admitted
    explained: tuple[str, ...] = ()
    max_ulp: float | None = None  # None for integers
    wrong_elements: Tensor = field(default_factory=lambda: _NOTHING, compare=False)  # flat indices


class TensorRuns(Protocol):
    """The same tensor in further runs of eager. Each run is made when it is first needed.

    A run may return another shape, or a `truth` that is not wider. It is ignored then.
    """

    def truth(self) -> Tensor | None: ...

    def noise(self) -> Sequence[Tensor]: ...

    def loud_noise(self) -> Sequence[Tensor]: ...

    def other_kernels(self) -> Iterable[Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRuns:
    """Further runs returned by functions; by default there are none."""

    truth: Callable[[], Tensor | None] = lambda: None
    noise: Callable[[], Sequence[Tensor]] = tuple
    loud_noise: Callable[[], Sequence[Tensor]] = tuple
    other_kernels: Callable[[], Iterable[Tensor]] = tuple


NO_RUNS = GivenRuns()


def compare_values(
    eager: Tensor,
    subject: Tensor,
    runs: TensorRuns = NO_RUNS,
    *,
    zero_signs: bool = True,
    row: ToleranceRow | None = None,
) -> ValueReport:
    """Compare two strided tensors of one shape and dtype, which may be any dtype.

    Without `zero_signs` the signs of zeros are not compared. `row` replaces the dtype's tolerance row (for Python numbers).
    """
    elements = eager.numel()
    floats = is_float(eager.dtype)
    if elements == 0 or is_identical(eager, subject):
        return ValueReport(
            is_right=True,
            elements=elements,
            witnesses=Counter(bits=elements),
            max_ulp=0.0 if floats else None,
        )
    if not floats:
        return _compare_integers(eager, subject, runs)
    return _FloatComparison(eager, subject, runs, row=row or TABLE[eager.dtype], zero_signs=zero_signs).run()


# ------------------------------------------------------------------------------------------------------ integers and bools


def _compare_integers(eager: Tensor, subject: Tensor, runs: TensorRuns) -> ValueReport:
    left, right = _comparable(eager), _comparable(subject)
    wrong = (left != right).nonzero().squeeze(-1)
    elements, differing = left.numel(), wrong.numel()
    by_witness: Counter[str] = Counter(bits=elements - differing)
    for name, admits in _integer_witnesses(eager, left, runs):
        held = admits(wrong, right[wrong])
        by_witness[name] += int(held.sum())
        wrong = wrong[~held]
        if not wrong.numel():
            break
    reasons = {
        "noise": "that eager itself flips under rounding noise or in fp64",
        "other kernels": "as eager's other kernels give them",
    }
    explained = tuple(
        f" differs in {by_witness[name]} of {elements} elements {reason}"
        for name, reason in reasons.items()
        if by_witness[name]
    )
    report = ValueReport(
        is_right=not wrong.numel(),
        elements=elements,
        unstable=differing - wrong.numel(),
        witnesses=+by_witness,
        explained=explained,
        wrong_elements=wrong,
    )
    return report if report.is_right else _with_worst_integer(report, eager, subject)


def _integer_witnesses(
    eager: Tensor, left: Tensor, runs: TensorRuns
) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """Each witness's name and a function that says which integers it admits at which flat indices, the cheapest first."""
    seen = [left, *_same_kind([runs.truth()], eager)]
    seen += _same_kind(runs.noise(), eager)
    yield "noise", lambda at, answers: (_rows(seen, at) == answers).any(0)
    seen += _same_kind(runs.loud_noise(), eager)
    yield "noise", lambda at, answers: holds_integers(answers, _rows(seen, at))
    for other in runs.other_kernels():
        for numbers in _same_kind([other], eager):
            yield "other kernels", lambda at, answers, numbers=numbers: numbers[at] == answers


def _rows(seen: Sequence[Tensor], at: Tensor) -> Tensor:
    return torch.stack([numbers[at] for numbers in seen])


def _with_worst_integer(report: ValueReport, eager: Tensor, subject: Tensor) -> ValueReport:
    wrong = report.wrong_elements
    eager_values, subject_values = eager.reshape(-1), subject.reshape(-1)
    apart = (_as_double(subject_values, wrong) - _as_double(eager_values, wrong)).abs()
    flat = int(wrong[apart.argmax()])
    seen, expected = element_text(subject_values, flat), element_text(eager_values, flat)
    index = unravel(flat, eager.shape)
    return replace(
        report,
        detail=f"{index_text(index)} is {seen}, but should be {expected} ({wrong.numel()} of {report.elements} elements differ)",
        worst=WorstElement(
            where="", index=index, eager=expected, subject=seen, subject_error=float(apart.max()), allowed_error=0.0
        ),
    )


def _comparable(tensor: Tensor) -> Tensor:
    """The tensor, flat, in a dtype that supports comparison: signed integers with the same bits, or bool."""
    flat = tensor.reshape(-1)
    return flat if flat.dtype is torch.bool else bits_of(flat)


def _same_kind(others: Iterable[Tensor | None], eager: Tensor) -> list[Tensor]:
    return [
        _comparable(other)
        for other in others
        if other is not None and other.shape == eager.shape and other.dtype == eager.dtype
    ]


def _as_double(flat: Tensor, index: Tensor) -> Tensor:
    values = flat[index] if flat.dtype in READABLE else bits_of(flat)[index]
    return values.to(torch.float64)


# ------------------------------------------------------------------------------------------------------------------ floats


class _FloatComparison:
    """Compares one pair of float tensors. Used once, since it holds the state of the comparison."""

    def __init__(
        self, eager: Tensor, subject: Tensor, runs: TensorRuns, *, row: ToleranceRow, zero_signs: bool
    ) -> None:
        self.shape, self.dtype = eager.shape, eager.dtype
        self.eager, self.subject = eager.reshape(-1), subject.reshape(-1)
        self.elements = eager.numel()
        self.row = row
        self.runs = runs
        self.zero_signs = zero_signs
        self.explained: list[str] = []
        self.witnesses: Counter[str] = Counter()
        self.unstable = self.wrong = _NOTHING  # flat indices
        self.excused = _NOTHING  # flat indices of elements whose error is no rounding; not in the root mean square

    def run(self) -> ValueReport:
        suspects, zero_flips, ulp = self._far_from_eager()
        self.witnesses["close"] = self.elements - suspects.numel()
        zero_finding = self._zero_sign_finding(zero_flips) if zero_flips.numel() and self.zero_signs else None
        finding = (self._ask_witnesses(suspects) if suspects.numel() else None) or zero_finding
        return ValueReport(
            is_right=finding is None,
            detail=finding[0] if finding else "",
            worst=finding[1] if finding else None,
            elements=self.elements,
            unstable=self.unstable.numel(),
            witnesses=+self.witnesses,
            explained=tuple(self.explained),
            max_ulp=ulp,
            wrong_elements=self.wrong,
        )

    def _far_from_eager(self) -> tuple[Tensor, Tensor, float]:
        """Flat indices of elements outside the tolerance row and of zeros whose sign differs, and the largest ULP distance."""
        far, flips, ulp = [], [], 0.0
        for start in range(0, self.elements, CHUNK):
            eager, subject = self.eager[start : start + CHUNK], self.subject[start : start + CHUNK]
            if is_identical(eager, subject):
                continue
            e, s = widen(eager), widen(subject)
            is_far = ~is_close(e, s, rtol=self.row.rtol, atol=self.row.atol)
            if bool(is_far.any()):
                far.append(is_far.nonzero().squeeze(-1) + start)
            if not e.is_complex():
                # The signs of a complex zero are left to the implementation.
                flip = (e == 0) & (s == 0) & (e.signbit() != s.signbit())
                if bool(flip.any()):
                    flips.append(flip.nonzero().squeeze(-1) + start)
            ulp = max(ulp, max_ulp(eager, subject))
        return torch.cat(far) if far else _NOTHING, torch.cat(flips) if flips else _NOTHING, ulp

    # -- elements

    def _ask_witnesses(self, suspects: Tensor) -> tuple[str, WorstElement] | None:
        truth, twin = self._usable_truth()
        whole = Whole(eager=self.eager, row=self.row, atol=self.row.atol, truth=truth)
        left = suspects
        # the error that the most lenient witness so far allows
        allowed = self.row.rtol * finite(widen(self.eager[left]).abs()) + self.row.atol
        for witness in self._witnesses(truth, twin):
            question = Question(at=left, eager=widen(self.eager[left]), whole=whole)
            admitted = witness.admitted(question)
            answers = widen(self.subject[left])
            held = admitted.holds(answers)
            if bool(held.any()):
                self._rest_on(witness, left[held], admitted.says_nothing(answers)[held])
            if admitted.radius is not None:
                allowed = torch.maximum(allowed, admitted.radius)
            left, allowed = left[~held], allowed[~held]
            if not left.numel():
                break
        if left.numel():
            self.wrong = left
            return self._element_finding(left, truth, allowed)
        return self._rmse_finding(suspects, truth) if truth is not None else None

    def _witnesses(self, truth: Tensor | None, twin: Tensor | None) -> Iterator[Witness]:
        """The witnesses from the cheapest to the dearest. The runs of each are made when it is reached."""
        row = self.row
        if truth is not None:
            yield Fp64(row, truth, self.dtype)
        if twin is not None:
            yield Fp64(row, twin, self.dtype, is_twin=True)
        noise = usable_noise(self.runs.noise(), self.shape, self.dtype)
        yield Noise(row, noise, row.k, lends=True) if noise else TypicalError(row)
        loud = usable_noise(self.runs.loud_noise(), self.shape, self.dtype)
        if loud:
            yield LoudNoise(row, loud, 1.0, lends=False)
        for other in self._other_kernels():
            yield OtherKernel(row, other)

    def _rest_on(self, witness: Witness, at: Tensor, says_nothing: Tensor) -> None:
        self.witnesses[witness.name] += at.numel()
        self.explained.append(f" has {at.numel()} of {self.elements} elements {witness.reason}")
        self.unstable = torch.cat([self.unstable, at[says_nothing]])
        self.excused = torch.cat([self.excused, at[says_nothing] if witness.is_rounding else at])

    def _other_kernels(self) -> Iterator[Tensor]:
        for other in self.runs.other_kernels():
            yield from usable_noise([other], self.shape, self.dtype)

    def _usable_truth(self) -> tuple[Tensor | None, Tensor | None]:
        """The run in fp64, as `truth` if its dtype is wider than eager's, as `twin` if it is the same; else None."""
        truth = self.runs.truth()
        if truth is None or truth.shape != self.shape or not is_float(truth.dtype):
            return None, None
        if truth.is_complex() != self.dtype.is_complex or TABLE[truth.dtype].eps > self.row.eps:
            return None, None
        flat = truth.reshape(-1)
        return (flat, None) if TABLE[truth.dtype].eps < self.row.eps else (None, flat)

    # -- signs of zeros

    def _zero_sign_finding(self, flips: Tensor) -> tuple[str, WorstElement] | None:
        """A zero of the other sign is wrong only if fp64, all runs under noise and eager's other kernels have eager's zero.

        Eager's vector loops and the scalar loops at their ends differ in it: of 20 zeros, the 12th may be +0 and the 18th -0.
        """
        truth, runs = self.runs.truth(), usable_noise(self.runs.noise(), self.shape, self.dtype)
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
                # If runs disagree on one zero, no sign is defined: an element's position decides which loop computes it.
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

    def _element_finding(self, wrong: Tensor, truth: Tensor | None, allowed: Tensor) -> tuple[str, WorstElement]:
        s, reference = widen(self.subject[wrong]), widen((self.eager if truth is None else truth)[wrong])
        excess = distance(s, reference) / allowed.clamp_min(self.row.tiny or 1e-300)
        at = int(excess.nan_to_num(nan=math.inf, posinf=math.inf).argmax())
        worst = self._worst(int(wrong[at]), truth, allowed[at].item())
        return (
            f"{index_text(worst.index)} is {worst.subject}, but should be {worst.eager}"
            f"{f' (fp64 {worst.truth})' if worst.truth is not None else ''}: error {number_text(worst.subject_error)}, "
            f"allowed {number_text(worst.allowed_error)}; {wrong.numel()} of {self.elements} elements are wrong",
            worst,
        )

    def _rmse_finding(self, suspects: Tensor, truth: Tensor) -> tuple[str, WorstElement] | None:
        """A root mean square error that is too large. Computed only if some element is outside the tolerance row."""
        row, keep = self.row, self.excused
        rmse = rmse_of(self.eager, self.subject, truth, without=keep)
        if not rmse.is_exceeded(row):
            return None
        runs = usable_noise(self.runs.noise(), self.shape, self.dtype)
        noise = max((noise_rmse(self.eager, run, without=keep) for run in runs), default=0.0)
        if not rmse.is_exceeded(row, noise=noise):
            return None
        error = finite(distance(widen(self.subject[suspects]), widen(truth[suspects])))
        bound = rmse.bound(row, noise=noise)
        worst = self._worst(int(suspects[error.argmax()]), truth, bound)
        return (
            f".rmse against fp64 is {rmse.subject:.3g}, but should be at most {bound:.3g} "
            f"(eager's is {rmse.eager:.3g}, that of noise {noise:.3g})",
            worst,
        )

    def _worst(self, flat: int, truth: Tensor | None, allowed: float) -> WorstElement:
        e, s = widen(self.eager[flat]), widen(self.subject[flat])
        reference = e if truth is None else widen(truth[flat])
        ulp = max_ulp(self.eager[flat : flat + 1], self.subject[flat : flat + 1])
        both_finite = bool(e.isfinite()) and bool(s.isfinite())
        return WorstElement(
            where="",
            index=unravel(flat, self.shape),
            eager=element_text(self.eager, flat),
            subject=element_text(self.subject, flat),
            truth=None if truth is None else str(reference.item()),
            eager_error=None if truth is None else finite_or_none(distance(e, reference)),
            subject_error=finite_or_none(distance(s, reference)),
            allowed_error=allowed if math.isfinite(allowed) else None,
            ulp=ulp if both_finite else None,
        )
