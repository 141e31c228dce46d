"""Eager by its other kernels: what they write, and which values they excuse."""

from __future__ import annotations

import math

import pytest
import torch

from oracle.accuracy import compare_values
from oracle.relaid import DenseOperands, other_kernels, scalar_loops

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


def test_scalar_loops_leave_reductions_as_they_are() -> None:
    """Eager's backward of a batch norm takes the gaps of this weight for numbers, and other kernels of it do not."""
    weight, images = torch.arange(1.0, 7)[::2], torch.ones(2, 3, requires_grad=True)

    def gradient() -> list[float]:
        normalised = torch.nn.functional.batch_norm(images, torch.zeros(3), torch.ones(3), weight=weight)
        return torch.autograd.grad(normalised, images, torch.ones(2, 3))[0][0].tolist()

    wrong, right = pytest.approx([1.0, 2.0, 3.0], rel=1e-4), pytest.approx([1.0, 3.0, 5.0], rel=1e-4)
    assert gradient() == wrong
    with scalar_loops():
        assert gradient() == wrong
    with other_kernels():
        assert gradient() == right


def test_vector_loops_read_copies_of_what_is_broadcast() -> None:
    """Where the lower bound is -0 and the number 0, the scalar loop of clamp gives the number and the vector loop the bound."""
    numbers, low, high = torch.zeros(4, 1), torch.full((1, 16), -0.0), torch.ones(4, 1)
    assert not torch.clamp(numbers, low, high).signbit().any()
    with DenseOperands():
        assert torch.clamp(numbers, low, high).signbit().all()


def test_scalar_loops_of_elementwise_gradients_are_taken() -> None:
    numbers = torch.full((36,), torch.nan, requires_grad=True)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.nn.functional.selu(numbers).sum(), numbers)[0]

    assert gradient()[:32].isnan().all()
    with scalar_loops():
        assert gradient()[:32].isfinite().all()


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
    assert compare_values(values[0], values[1], relaid=lambda: [values[2]]).is_right is is_right


@pytest.mark.parametrize(
    ("other", "is_right"),
    [([1.0, 2.0], True), ([math.nan, 2.0], False), ([3.0, 2.0], False)],
)
def test_where_signs_of_zeros_are_open_other_kernels_still_excuse(other: list[float], *, is_right: bool) -> None:
    eager, subject = torch.tensor([math.nan, 2.0]), torch.tensor([1.0, 2.0])
    report = compare_values(eager, subject, relaid=lambda: [torch.tensor(other)], zero_signs=False)
    assert report.is_right is is_right


@pytest.mark.parametrize("zero_signs", [True, False])
def test_signs_of_zeros_that_everything_agrees_on_are_compared_unless_told(*, zero_signs: bool) -> None:
    eager = torch.zeros(2)
    report = compare_values(
        eager,
        -eager,
        truth=lambda: eager.double(),
        noise=lambda: [eager],
        relaid=lambda: [eager],
        zero_signs=zero_signs,
    )
    assert report.is_right is not zero_signs


def test_each_of_the_other_kernels_excuses_elements_of_its_own() -> None:
    eager, subject = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 3.0])
    others = [torch.tensor([5.0, 2.0, 3.0]), torch.tensor([1.0, 6.0, 3.0])]
    assert compare_values(eager, subject, relaid=lambda: others).is_right
    assert not compare_values(eager, subject, relaid=lambda: others[:1]).is_right
    assert not compare_values(eager, subject, relaid=lambda: others[1:]).is_right
