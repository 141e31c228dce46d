"""Eager by its other kernels: what they write, and which values they excuse."""

from __future__ import annotations

import math

import pytest
import torch

from oracle.accuracy import compare_values
from oracle.relaid import other_kernels

LARGEST = torch.finfo(torch.float32).max


def test_running_statistics_are_those_of_the_other_kernels_and_move_once() -> None:
    """The kernel of contiguous images adds up in float64. The schema of the operator does not say that it writes."""
    images = torch.tensor([[[-LARGEST, -LARGEST], [1.0, 3.0]], [[LARGEST, 0.0], [5.0, 7.0]]])
    plain, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    plain(images)
    with other_kernels():
        other(images)
    assert plain.running_mean is not None
    assert other.running_mean is not None
    assert plain.running_mean.tolist() == pytest.approx([-LARGEST / 40, 0.4])
    assert other.running_mean.tolist() == pytest.approx([-math.inf, 0.4])


@pytest.mark.parametrize(
    ("eager", "other", "subject", "is_right"),
    [
        (0.0, -math.inf, math.nan, True),  # something overflows on the way
        (0.0, -math.inf, -math.inf, True),
        (0.0, -math.inf, math.inf, False),
        (0.0, 0.0, math.nan, False),
        (0.0, 1.0, math.nan, False),
        (-math.inf, 0.0, math.nan, False),
    ],
)
def test_what_another_kernel_excuses(eager: float, other: float, subject: float, *, is_right: bool) -> None:
    values = [torch.tensor([value, 1.0]) for value in (eager, subject, other)]
    assert compare_values(values[0], values[1], relaid=lambda: values[2]).is_right is is_right
