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

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from oracle.judge.elements import READABLE, is_float, is_identical, usable_noise, widen
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.values import GivenRuns, TensorRuns, compare_values


class TrustedRuns:
    """The runs of one tensor, without what the mode does to eager. Each starts when first asked for.

    `still` gives the tensor of the run without noise; None, another shape or another dtype: everything is trusted.
    """

    def __init__(
        self,
        eager: Tensor,
        runs: TensorRuns,
        *,
        still: Callable[[], Tensor | None],
        row: ToleranceRow | None = None,
    ) -> None:
        self._eager, self._runs, self._still, self._row = eager, runs, still, row
        self._foreign: Tensor | None = None

    @property
    def distrusted(self) -> int:
        """How many elements were found that a mode changes; 0 if nobody asked."""
        return 0 if self._foreign is None else self._foreign.numel()

    def truth(self) -> Tensor | None:
        found = self._runs.truth()
        return None if found is None else next(iter(self._as_in_eager([found])), None)

    def noise(self) -> Sequence[Tensor]:
        return self._as_in_eager(self._runs.noise())

    def loud_noise(self) -> Sequence[Tensor]:
        return self._as_in_eager(self._runs.loud_noise())

    def other_kernels(self) -> Iterator[Tensor]:
        for found in self._runs.other_kernels():
            yield from self._as_in_eager([found])

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
        runs = GivenRuns(noise=self._runs.noise, loud_noise=self._runs.loud_noise)
        wrong = compare_values(still, self._eager, runs, zero_signs=False, row=self._row).wrong_elements
        if not wrong.numel():
            return wrong
        noise = usable_noise((*runs.noise(), *runs.loud_noise()), still.shape, still.dtype)
        return wrong[_exceeds_noise(self._eager.reshape(-1), still.reshape(-1), wrong, noise, self._row)]


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
