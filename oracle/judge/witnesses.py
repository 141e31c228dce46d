"""Witnesses: further runs of eager that say which values a right compiler may compute, element by element.

A witness is asked about elements of one tensor where the subject's value is not eager's. From its runs of eager it derives the
admitted values (`Admitted`): those within a distance of a number, single numbers, or none where the runs show nothing. A value
that no witness admits is wrong, however much eager itself varies.

`close` comes first and needs no run (oracle.judge.values). Then, for floats, come `fp64`, `noise`, `loud noise` and
`other kernels`, each for the elements that are left, since each costs more runs. Symmetries are in oracle.judge.symmetry,
distributions of random numbers in oracle.judge.distribution.

Eager's numbers are flat here, and in float64 or complex128.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from oracle.judge.elements import distance, finite, is_close, is_same_special, widen
from oracle.judge.tolerance import ToleranceRow

_LENT = 16.0  # an element's spread is raised to the tensor's typical spread, but at most to so many times its own
_SAMPLE = 1 << 16  # number of elements from which a median is taken
_UNSEEN = 0.125  # see `holds_integers`


# ---------------------------------------------------------------------------------------------------- sets of values


class Answers(Protocol):
    """A set of numbers for each of n elements."""

    def holds(self, numbers: Tensor) -> Tensor:
        """For each of n numbers, whether it is in the set of its element."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Numbers within `radius` of `center`. Empty where the radius is negative or the center is not finite."""

    center: Tensor
    radius: Tensor

    def holds(self, numbers: Tensor) -> Tensor:
        apart = distance(numbers, self.center)
        return (apart <= self.radius) & apart.isfinite()


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One number and those within a tolerance of it, where `where` is set. NaN is equal to NaN."""

    value: Tensor
    where: Tensor
    rtol: float = 0.0
    atol: float = 0.0

    def holds(self, numbers: Tensor) -> Tensor:
        return self.where & is_close(self.value, numbers, rtol=self.rtol, atol=self.atol)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """NaN and the infinities, where `where` is set: the order of operations decides between them."""

    where: Tensor

    def holds(self, numbers: Tensor) -> Tensor:
        return self.where & ~numbers.isfinite()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """Real numbers between `start` and the infinity of sign `sign`, where `where` is set."""

    start: Tensor
    sign: float
    where: Tensor

    def holds(self, numbers: Tensor) -> Tensor:
        return self.where & numbers.isfinite() & ((numbers - self.start) * self.sign >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The union of `sets`. `is_open` marks elements where eager returns a number, NaN or an infinity by chance."""

    sets: tuple[Answers, ...] = ()
    radius: Tensor | None = None  # of the widest interval, for messages; None: there is no interval
    is_open: Tensor | None = None

    def holds(self, numbers: Tensor) -> Tensor:
        held = torch.zeros(numbers.shape, dtype=torch.bool)
        for answers in self.sets:
            held |= answers.holds(numbers)
        return held

    def says_nothing(self, answers: Tensor) -> Tensor:
        """Elements that were not really compared: 0 is admitted too, or a number beside the NaN or infinity of the subject."""
        nothing = self.holds(torch.zeros_like(answers))
        return nothing if self.is_open is None else nothing | (self.is_open & ~answers.isfinite())


# ---------------------------------------------------------------------------------------------------- the question


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The whole tensor whose elements are in question."""

    eager: Tensor  # flat, in its own dtype
    row: ToleranceRow
    atol: float
    truth: Tensor | None  # flat, in fp64


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The elements in question: n flat indices of one tensor, and eager's numbers there."""

    at: Tensor
    eager: Tensor
    whole: Whole
    truth: Tensor | None = field(init=False)
    entitled: Tensor = field(init=False)  # the error that eager has or may have, before any factor

    def __post_init__(self) -> None:
        eps = self.whole.row.eps
        truth = None if self.whole.truth is None else widen(self.whole.truth[self.at])
        entitled = eps * finite(self.eager.abs())
        if truth is not None:
            # Where fp64 is not finite, eager's number is the reference.
            reference = torch.where(truth.isfinite(), truth, self.eager)
            entitled = torch.maximum(finite(distance(self.eager, reference)), eps * finite(reference.abs()))
        object.__setattr__(self, "truth", truth)
        object.__setattr__(self, "entitled", entitled)

    def around(self, radius: Tensor) -> tuple[Answers, ...]:
        """Numbers within `radius` of eager's or of fp64's. Either is a fair center, as eager's distance to fp64 is noise."""
        centers = [self.eager] if self.truth is None else [self.eager, self.truth]
        return tuple(Around(center=center, radius=radius) for center in centers)


class Witness(ABC):
    """Admits values. `name` is its name in verdicts, `reason` follows "has 3 of 10 elements" there."""

    name: ClassVar[str]

    @property
    def is_rounding(self) -> bool:
        """Whether the errors it admits are rounding errors, which count in the root mean square error."""
        return True

    @property
    @abstractmethod
    def reason(self) -> str: ...

    @abstractmethod
    def admitted(self, question: Question) -> Admitted: ...


# ---------------------------------------------------------------------------------------------------- the witnesses of floats


@dataclass(frozen=True)
class Fp64(Witness):
    """Eager in fp64: admits values no further from fp64 than `k` times eager's own error, or `k` roundings.

    Where eager overflowed although the dtype can hold the fp64 value, it admits NaN and both infinities.
    `is_twin`: the run returned eager's own dtype, because the program computes in a narrower dtype than it returns. It then
    admits values only where it differs from eager.
    """

    row: ToleranceRow
    numbers: Tensor  # flat
    dtype: torch.dtype  # eager's
    is_twin: bool = False
    name: ClassVar[str] = "fp64"

    @property
    def is_rounding(self) -> bool:
        return not self.is_twin

    @property
    def reason(self) -> str:
        return f"outside the tolerance row that are no further from fp64 than {self.row.k:g} times eager's own error or precision"

    def admitted(self, question: Question) -> Admitted:
        e, t = question.eager, widen(self.numbers[question.at])
        held = widen(t.to(self.dtype))  # the truth in eager's dtype: 1e5 is infinite in float16
        floor = torch.maximum(finite(distance(e, t)), self.row.eps * finite(t.abs()))
        asks = torch.ones(e.shape, dtype=torch.bool)
        if self.is_twin:
            asks = ~is_close(t, e, rtol=self.row.rtol, atol=question.whole.atol) & t.isfinite()
        overflowed = asks & held.isfinite() & ~e.isfinite()
        radius = torch.where(asks, self.row.k * floor + question.whole.atol, -1.0)
        return Admitted(
            sets=(
                Around(center=t, radius=radius),
                Single(value=held, where=asks & ~held.isfinite()),
                NotFinite(where=overflowed),
            ),
            radius=radius,
            is_open=overflowed,
        )


@dataclass(frozen=True)
class Noise(Witness):
    """Eager under rounding noise: admits values within `factor` times the distance that noise moves the element.

    Few runs may hit the same rounding by chance, so the spread of an element that moves at all is raised to the tensor's typical
    spread, but at most to 16 times its own: large noisy values must not hide errors of small exact ones in the same tensor. Where
    some runs return NaN or an infinity and others a number, it admits NaN and the infinities, and numbers around those seen, up
    to an infinity if that was seen.
    """

    row: ToleranceRow
    runs: Sequence[Tensor]  # flat
    factor: float
    lends: bool
    name: ClassVar[str] = "noise"

    @property
    def reason(self) -> str:
        return f"that differ by no more than {self.factor:g} times what rounding noise in eager moves them"

    def admitted(self, question: Question) -> Admitted:
        e, atol = question.eager, question.whole.atol
        spread, is_open = spread_of(self.runs, question.at, e)
        moves = spread > 0
        if self.lends:
            spread = torch.maximum(spread, (_LENT * spread).clamp_max(self._typical(question.whole)))
        radius = self.factor * spread + atol
        if self.lends:
            radius = torch.maximum(radius, self.row.k * question.entitled + atol)
        sets = [*question.around(torch.where(moves | self.lends, radius, -1.0))]
        if bool(is_open.any()):
            sets += self._where_open(question, is_open)
        return Admitted(sets=tuple(sets), radius=radius, is_open=is_open)

    def _where_open(self, question: Question, is_open: Tensor) -> list[Answers]:
        """The sets of elements for which some runs, eager's own included, return a number and others do not."""
        at, e = question.at, question.eager
        seen = torch.stack([e, *(widen(run[at]) for run in self.runs)])
        count = seen.isfinite().sum(0)
        center = torch.where(e.isfinite(), e, finite(seen).sum(0) / count.clamp_min(1))
        spread = finite(distance(seen, center)).amax(0)
        # Fewer than three numbers have no meaningful spread: it is taken to be their magnitude.
        spread = torch.where(count < 3, torch.maximum(spread, center.abs()), spread)
        radius = self.factor * spread + question.whole.atol
        known = is_open & (count > 0)
        sets: list[Answers] = [
            Around(center=center, radius=torch.where(known, radius, -1.0)),
            NotFinite(where=is_open),
        ]
        if not seen.is_complex():
            for sign in (1.0, -1.0):
                sets.append(
                    Beyond(start=center - sign * radius, sign=sign, where=known & (seen == sign * math.inf).any(0))
                )
        return sets

    def _typical(self, whole: Whole) -> float:
        """Median spread of the elements that noise moves at all, from an evenly spread sample of the tensor."""
        elements = whole.eager.numel()
        sample = torch.arange(0, elements, max(1, elements // _SAMPLE))
        spread, is_open = spread_of(self.runs, sample, widen(whole.eager[sample]))
        spread = spread[(spread > 0) & ~is_open]
        return spread.median().item() if spread.numel() else 0.0


class LoudNoise(Noise):
    """Eager under noise of `k` times the size: admits values no further from eager's than that noise moves the element.

    A jump (round, floor, a comparison) has no slope to multiply by `k`, so the larger noise has to be tried.
    """

    name: ClassVar[str] = "loud noise"

    @property
    def is_rounding(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        return f"that noise of {self.row.k:g} times eager's rounding moves as far"


@dataclass(frozen=True)
class OtherKernel(Witness):
    """Eager by another of its kernels: admits that kernel's number where it differs from eager's.

    Where that kernel overflows and eager does not, an intermediate value overflows, and NaN is admitted as well.
    """

    row: ToleranceRow
    numbers: Tensor  # flat
    name: ClassVar[str] = "other kernels"

    @property
    def is_rounding(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        return "as eager's other kernels give them"

    def admitted(self, question: Question) -> Admitted:
        value, rtol, atol = widen(self.numbers[question.at]), self.row.rtol, question.whole.atol
        disagrees = ~is_close(value, question.eager, rtol=rtol, atol=atol)
        overflows = question.eager.isfinite() & value.isinf()
        single = Single(value=value, where=disagrees, rtol=rtol, atol=atol)
        nan = Single(value=torch.full_like(value, math.nan), where=overflows)
        return Admitted(sets=(single, nan), is_open=overflows)


@dataclass(frozen=True)
class TypicalError(Witness):
    """Used if there is no run under noise: admits values within `k` times eager's median error against fp64."""

    row: ToleranceRow
    name: ClassVar[str] = "fp64"

    @property
    def reason(self) -> str:
        return f"within {self.row.k:g} times eager's typical error against fp64"

    def admitted(self, question: Question) -> Admitted:
        truth, eager = question.whole.truth, question.whole.eager
        if truth is None:
            return Admitted()
        sample = torch.arange(0, eager.numel(), max(1, eager.numel() // _SAMPLE))
        error = distance(widen(eager[sample]), widen(truth[sample]))
        error = error[error.isfinite()]
        typical = error.median().item() if error.numel() else 0.0
        radius = torch.full(question.eager.shape, self.row.k * typical + question.whole.atol, dtype=torch.float64)
        return Admitted(sets=question.around(radius), radius=radius)


def spread_of(runs: Sequence[Tensor], at: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """How far the runs move each element, and where some run is finite and `e` is not, or the other way round."""
    spread = torch.zeros(e.shape, dtype=torch.float64)
    is_open = torch.zeros(e.shape, dtype=torch.bool)
    for run in runs:
        moved = widen(run[at])
        is_open |= (moved.isfinite() != e.isfinite()) | (~e.isfinite() & ~is_same_special(moved, e))
        spread = torch.maximum(spread, finite(distance(moved, e)))
    return spread, is_open


# ---------------------------------------------------------------------------------------------------- integers and bools


def holds_integers(answers: Tensor, seen: Tensor) -> Tensor:
    """For each of n integers, whether eager may return it. `seen` has a row of n integers for each run of eager.

    It may return the numbers seen. Where the runs have not shown all of them, it may also return a number in the range of those
    seen, widened on both sides by its width but not across 0. By Good and Turing, the chance that another run returns a new
    number is about the share of runs whose number no other run has: if that is 1 in 8 or more, numbers are missing.
    """
    held = (seen == answers).any(0)
    if bool(held.all()) or answers.dtype is torch.bool:
        return held
    ordered = seen.sort(0).values
    repeats = ordered[1:] == ordered[:-1]
    edge = torch.zeros_like(repeats[:1])
    is_single = ~(torch.cat([edge, repeats]) | torch.cat([repeats, edge]))
    is_missing_some = is_single.sum(0) >= _UNSEEN * len(seen)
    low, high = ordered[0].double(), ordered[-1].double()
    width = high - low
    low = torch.where(low >= 0, (low - width).clamp_min(0), low - width)
    high = torch.where(high <= 0, (high + width).clamp_max(0), high + width)
    answer = answers.double()
    return held | (is_missing_some & (width > 0) & (answer >= low) & (answer <= high))
