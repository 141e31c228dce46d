"""Distrust the further runs of eager in elements that their dispatch mode changes.

Runs in fp64, under noise and by other kernels all run eager under a dispatch mode. Some programs mean something else there: a
foreach operator that writes to a view loses its gradient. Such a difference is no rounding and must not excuse a subject. So
eager is also run under the noise's mode without noise (the "still" run), and where that differs from plain eager by more than
rounding, all further runs are given eager's own value.

To tell such differences from rounding, the still run is taken for eager, eager for the subject, and compared as in
oracle.judge.values. An element is distrusted only if its difference is also larger than a rounding of the tensor's largest
element, and than what noise does to any element: LAPACK rounds by that much differently for operands with other strides, and
distrusting right runs would cause false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from oracle.judge.elements import READABLE, is_float, is_identical, usable_noise, widen
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.values import GivenRuns, TensorRuns, compare_values


class TrustedRuns:
    """The further runs of one tensor, with eager's own values where the mode changes eager. Each is made when first needed.

    `still` returns the tensor of the run without noise. If it is None or has another shape or dtype, everything is trusted.
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
        """Number of elements that the mode changes; 0 if no further run was needed."""
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
        if self._eager.dtype not in READABLE:  # its elements cannot be assigned
            return []
        return [self._put_back(other, self._foreign) for other in others if other.shape == self._eager.shape]

    def _put_back(self, other: Tensor, foreign: Tensor) -> Tensor:
        flat = other.reshape(-1).clone()
        flat[foreign] = self._eager.reshape(-1)[foreign].to(flat.dtype)
        return flat.reshape(other.shape)

    def _find_foreign(self) -> Tensor:
        """Flat indices of the elements that the mode changes by more than rounding."""
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
    """Mask over `at`: elements that differ by more than noise moves any element. Integers: all, if noise changes none."""
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
