"""Root mean square error of a whole tensor. It shows a loss of one bit in every element, which no single element shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracle.judge.elements import distance, widen
from oracle.judge.tolerance import ToleranceRow
from oracle.judge.ulp import CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmse:
    """Root mean square errors of the subject and of eager against fp64, and the root mean square of fp64's values."""

    subject: float
    eager: float
    magnitude: float
    effective_elements: float

    def bound(self, row: ToleranceRow, *, noise: float = 0.0) -> float:
        return row.rmse_factor(self.effective_elements) * max(self.eager, row.eps * self.magnitude, noise, row.tiny)

    def is_exceeded(self, row: ToleranceRow, *, noise: float = 0.0) -> bool:
        return self.subject > self.bound(row, noise=noise)


def rmse_of(eager: Tensor, subject: Tensor, truth: Tensor, *, without: Tensor) -> Rmse:
    """Errors of flat tensors of one length. Elements at the flat indices `without` and those not finite are left out."""
    sums = torch.zeros(5, dtype=torch.float64)
    for start, keep in _kept(eager.numel(), without):
        stop = start + CHUNK
        s, e, t = widen(subject[start:stop]), widen(eager[start:stop]), widen(truth[start:stop])
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
    of_subject, of_subject_fourth, of_eager, magnitude, count = sums.tolist()
    return Rmse(
        subject=math.sqrt(of_subject / max(count, 1)),
        eager=math.sqrt(of_eager / max(count, 1)),
        magnitude=math.sqrt(magnitude / max(count, 1)),
        # Participation ratio: one large error beside many tiny ones counts as the evidence of one element.
        effective_elements=of_subject * of_subject / of_subject_fourth if of_subject_fourth > 0 else count,
    )


def noise_rmse(eager: Tensor, run: Tensor, *, without: Tensor) -> float:
    """Root mean square distance of a run under noise from eager, with the elements left out as in `rmse_of`."""
    total, count = 0.0, 0
    for start, keep in _kept(eager.numel(), without):
        n, e = widen(run[start : start + CHUNK]), widen(eager[start : start + CHUNK])
        keep = keep & n.isfinite() & e.isfinite()
        total += distance(n, e)[keep].square().sum().item()
        count += int(keep.sum())
    return math.sqrt(total / max(count, 1))


def _kept(elements: int, without: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The start of each chunk, and a mask of the chunk's elements that are not left out."""
    for start in range(0, elements, CHUNK):
        keep = torch.ones(min(CHUNK, elements - start), dtype=torch.bool)
        if without.numel():
            here = without[(without >= start) & (without < start + CHUNK)]
            keep[here - start] = False
        yield start, keep
