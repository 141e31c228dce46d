"""Whether eager under a dispatch mode is eager: where it is not, neither fp64 nor noise nor other kernels excuse a subject.

All run eager under a mode, and autograd and composite operators can take other roads there: a list operator that writes to a
view loses its gradient. What moves by that is not moved by rounding. So eager is run once more under the mode of the noise
without noise ("still"), and where this differs from plain eager by more than noise moves it, the runs show eager's own value.

Which differences are rounding, amplified or not, is asked as it is asked of a subject (oracle.judge.values):
the still run takes eager's place, eager the subject's, and the noise is noise around the still run. What is left counts only
if it is also larger than a rounding of the tensor's largest element, and than what noise does to any element of the tensor:
LAPACK rounds otherwise where its operands lie otherwise in memory, by that much, and to be distrusted in vain is worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from oracle.judge.elements import READABLE, is_float, is_identical, widen
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.values import NoiseSource, OthersSource, TruthSource, compare_values, no_noise


class TrustedRuns:
    """Sources of truth and noise for one tensor, without what the mode does to eager. Each source starts when first asked for.

    `still` gives the tensor of the run without noise; None, another shape or another dtype: everything is trusted.
    """

    def __init__(
        self,
        eager: Tensor,
        *,
        still: TruthSource,
        truth: TruthSource,
        noise: NoiseSource,
        loud: NoiseSource,
        relaid: OthersSource = no_noise,
        row: ToleranceRow | None = None,
    ) -> None:
        self._eager, self._row, self._relaid = eager, row, relaid
        self._still, self._truth, self._noise, self._loud = still, truth, noise, loud
        self._foreign: Tensor | None = None

    @property
    def distrusted(self) -> int:
        """How many elements were found that a mode changes; 0 if nobody asked."""
        return 0 if self._foreign is None else self._foreign.numel()

    def truth(self) -> Tensor | None:
        return self._one_as_in_eager(self._truth())

    def relaid(self) -> Iterator[Tensor | None]:
        return map(self._one_as_in_eager, self._relaid())

    def noise(self) -> Sequence[Tensor]:
        return self._as_in_eager(self._noise())

    def loud(self) -> Sequence[Tensor]:
        return self._as_in_eager(self._loud())

    def _one_as_in_eager(self, other: Tensor | None) -> Tensor | None:
        return None if other is None else next(iter(self._as_in_eager([other])), None)

    def _as_in_eager(self, others: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._foreign is None:
            self._foreign = self._find_foreign()
        if not others or not self._foreign.numel():
            return others
        if self._eager.dtype not in READABLE:  # cannot be written element by element
            return []
        return [self._put_back(other, self._foreign) for other in others if other.shape == self._eager.shape]

    def _put_back(self, other: Tensor, foreign: Tensor) -> Tensor:
        flat = other.reshape(-1).clone()
        flat[foreign] = self._eager.reshape(-1)[foreign].to(flat.dtype)
        return flat.reshape(other.shape)

    def _find_foreign(self) -> Tensor:
        """Flat indices of the elements that differ under the mode, and not by rounding."""
        still = self._still()
        if still is None or still.shape != self._eager.shape or still.dtype != self._eager.dtype:
            return torch.zeros(0, dtype=torch.int64)
        wrong = compare_values(
            still, self._eager, noise=self._noise, loud=self._loud, relaid=None, row=self._row
        ).wrong_elements
        if not wrong.numel():
            return wrong
        runs = [
            run.reshape(-1)
            for run in (*self._noise(), *self._loud())
            if run.shape == still.shape and run.dtype == still.dtype
        ]
        return wrong[_exceeds_noise(self._eager.reshape(-1), still.reshape(-1), wrong, runs, self._row)]


def _exceeds_noise(
    eager: Tensor, still: Tensor, at: Tensor, runs: Sequence[Tensor], row: ToleranceRow | None
) -> Tensor:
    """Mask over `at`: what differs by more than noise moves any element. Integers: where noise moves none at all."""
    if not is_float(still.dtype):
        return torch.full(at.shape, all(is_identical(run, still) for run in runs))
    row = row or TABLE[still.dtype]
    base = widen(still)
    moved = [(widen(run) - base).abs() for run in runs]
    turns_special = any(bool((widen(run).isfinite() != base.isfinite()).any()) for run in runs)
    scale = base.abs().nan_to_num(0.0, 0.0, 0.0).max() * row.eps
    largest = max([scale, *(move.nan_to_num(0.0, 0.0, 0.0).max() for move in moved)], key=float)
    difference = (widen(eager)[at] - base[at]).abs()
    return torch.where(difference.isfinite(), difference > row.k * largest, torch.tensor(not turns_special))


def is_flipped_by_mode(expected: int, still: object, others: Sequence[object]) -> bool:
    """Whether a Python number is another one under the mode, and noise leaves that as it is."""
    if type(still) is not type(expected) or still == expected:
        return False
    return all(other == still for other in others if type(other) is type(expected))
