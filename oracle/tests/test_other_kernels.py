"""Eager by its other kernels: what they write, and which values they excuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.judge.values import GivenRuns, compare_values
from oracle.reruns.other_kernels import DenseOperands, other_kernels, scalar_loops

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("is_inference", [False, True])
def test_running_statistics_are_those_of_the_other_kernels_and_move_once(*, is_inference: bool) -> None:
    """The kernel of contiguous images adds up in float64. The schema of the operator does not say that it writes."""
    images = torch.tensor([[[-LARGEST, -LARGEST], [1.0, 3.0]], [[LARGEST, 0.0], [5.0, 7.0]]])
    plain, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    plain(images)
    with torch.inference_mode(is_inference), other_kernels():
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


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 100), (0, 3)])
def test_vector_loops_take_the_numbers_behind_the_last_whole_vector(shape: tuple[int, ...]) -> None:
    """The scalar loop gives the incoming gradient of a NaN, the vector loop NaN."""
    numbers = torch.full(shape, torch.nan, requires_grad=True)
    written = torch.zeros(shape)
    with DenseOperands():
        (gradient,) = torch.autograd.grad(torch.nn.functional.hardswish(numbers).sum(), numbers)
        torch.add(torch.ones(shape), torch.ones(shape[-1:]), out=written)
    assert gradient.shape == shape
    assert gradient.isnan().all()
    assert written.tolist() == torch.full(shape, 2.0).tolist()


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"])
def test_means_over_elements_count_those_that_there_are(name: str) -> None:
    numbers, targets = torch.full((3,), 0.5, requires_grad=True), torch.ones(3)
    loss = getattr(torch.nn.functional, name)(numbers, targets)
    (gradient,) = torch.autograd.grad(loss, numbers, retain_graph=True)
    with DenseOperands():
        (other,) = torch.autograd.grad(loss, numbers)
    assert other.tolist() == gradient.tolist()


def test_scalar_loops_of_elementwise_gradients_are_taken() -> None:
    numbers = torch.full((36,), torch.nan, requires_grad=True)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.nn.functional.selu(numbers).sum(), numbers)[0]

    assert gradient()[:32].isnan().all()
    with scalar_loops():
        assert gradient()[:32].isfinite().all()


def test_an_operator_that_refuses_gaps_reads_the_operands_themselves() -> None:
    """The check of a batch of decompositions; the program around it is still asked for its other zeros."""
    numbers, matrices = torch.linspace(-0.3, -0.1, 16), torch.eye(4).repeat(2, 1, 1)

    def program() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.softshrink(numbers), torch.inverse(matrices)

    assert not program()[0].signbit().any()
    with other_kernels():
        zeros, inverses = program()
    assert zeros.signbit().all()
    assert torch.equal(inverses, matrices)


def _bounded_in_place(zeros: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return zeros.clamp_(min=others)


def _least_in_out(zeros: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch.minimum(zeros, others, out=torch.empty(0))


def _least_of_lists(zeros: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch._foreach_minimum([zeros], [others])[0]


def _least_of_lists_in_place(zeros: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    torch._foreach_minimum_([zeros], [others])
    return zeros


@pytest.mark.parametrize("least", [_bounded_in_place, _least_in_out, _least_of_lists, _least_of_lists_in_place])
def test_operators_that_write_take_scalar_loops(least: Callable[..., torch.Tensor]) -> None:
    """The vector loop returns the second of two zeros. The scalar loop, here for the last element, returns the first."""

    def is_negative() -> list[bool]:
        return least(torch.zeros(17), torch.full((17,), -0.0)).signbit().tolist()

    assert is_negative() == [True] * 16 + [False]
    with scalar_loops():
        assert is_negative() == [False] * 17


def test_parameters_are_written_by_scalar_loops() -> None:
    def remainders() -> list[float]:
        weight = torch.nn.Parameter(torch.full((8,), 1e300, dtype=torch.float64))
        with torch.no_grad():
            return weight.remainder_(1e-300).tolist()

    if not all(math.isnan(number) for number in remainders()):
        pytest.skip("the vector loop of this processor gives what is left, as the scalar one does")
    with scalar_loops():
        assert all(number < 1e-300 for number in remainders())


def test_vector_loops_write_into_copies() -> None:
    def is_negative() -> list[bool]:
        low, high = torch.full((16,), -0.0), torch.ones(16)
        out, apart = torch.empty(0), torch.zeros(4, 32)[:, ::2]
        torch.clamp(torch.zeros(4, 1), low, high[:1], out=out)
        return [bool(value.signbit().any()) for value in (out, apart.clamp_(low, high))]

    assert is_negative() == [False, False]
    with DenseOperands():
        assert is_negative() == [True, True]


def _one_number(x: torch.Tensor) -> None:
    x[0, 0].add_(1)


def _itself(x: torch.Tensor) -> None:
    x.add_(x)


def _its_memory(x: torch.Tensor) -> None:
    x.mul_(x.view(2, 3))


def _one_after_another(x: torch.Tensor) -> None:
    torch._foreach_add_([x[0], x[1], x[0]], [x[1], x[0], x[0]])


def _other_dtype(x: torch.Tensor) -> None:
    x.add_(torch.full((2, 3), 0.1, dtype=torch.float64))


def _columns(x: torch.Tensor) -> None:
    torch.sub(x[:, 1], 3, out=x[:, 2])


def _parameter(x: torch.Tensor) -> None:
    weight = torch.nn.Parameter(x)
    with torch.no_grad():
        weight.sub_(2).clamp_(min=torch.ones(3))


@pytest.mark.parametrize("mode", [other_kernels, scalar_loops, DenseOperands])
@pytest.mark.parametrize(
    "write", [_one_number, _itself, _its_memory, _one_after_another, _other_dtype, _columns, _parameter]
)
def test_what_is_written_is_written_once(write: Callable[[torch.Tensor], None], mode: Callable[..., Any]) -> None:
    expected, x = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
    write(expected)
    with mode():
        write(x)
    assert x.tolist() == expected.tolist()


@pytest.mark.parametrize("mode", [other_kernels, scalar_loops, DenseOperands])
def test_autograd_sees_a_write_as_without_the_mode(mode: Callable[..., Any]) -> None:
    def gradient() -> list[float]:
        x = torch.arange(1.0, 20).requires_grad_()
        return torch.autograd.grad((x * 2).sigmoid_().mul(x).neg_().sum(), x)[0].tolist()

    def refused() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    expected = gradient()
    with mode():
        assert gradient() == pytest.approx(expected)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            refused()


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
    assert compare_values(values[0], values[1], GivenRuns(other_kernels=lambda: [values[2]])).is_right is is_right


@pytest.mark.parametrize(
    ("other", "is_right"),
    [([1.0, 2.0], True), ([math.nan, 2.0], False), ([3.0, 2.0], False)],
)
def test_where_signs_of_zeros_are_open_other_kernels_still_excuse(other: list[float], *, is_right: bool) -> None:
    eager, subject = torch.tensor([math.nan, 2.0]), torch.tensor([1.0, 2.0])
    report = compare_values(eager, subject, GivenRuns(other_kernels=lambda: [torch.tensor(other)]), zero_signs=False)
    assert report.is_right is is_right


@pytest.mark.parametrize("zero_signs", [True, False])
def test_signs_of_zeros_that_everything_agrees_on_are_compared_unless_told(*, zero_signs: bool) -> None:
    eager = torch.zeros(2)
    report = compare_values(
        eager,
        -eager,
        GivenRuns(truth=lambda: eager.double(), noise=lambda: [eager], other_kernels=lambda: [eager]),
        zero_signs=zero_signs,
    )
    assert report.is_right is not zero_signs


def test_each_of_the_other_kernels_excuses_elements_of_its_own() -> None:
    eager, subject = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 3.0])
    others = [torch.tensor([5.0, 2.0, 3.0]), torch.tensor([1.0, 6.0, 3.0])]
    assert compare_values(eager, subject, GivenRuns(other_kernels=lambda: others)).is_right
    assert not compare_values(eager, subject, GivenRuns(other_kernels=lambda: others[:1])).is_right
    assert not compare_values(eager, subject, GivenRuns(other_kernels=lambda: others[1:])).is_right


@pytest.mark.parametrize(
    ("other", "subject", "is_right"),
    [
        ([True, False], [True, False], True),
        ([False, False], [True, False], False),
        ([True, False], [True, True], False),
    ],
)
def test_of_truth_values_other_kernels_excuse_those_that_they_give(
    other: list[bool], subject: list[bool], *, is_right: bool
) -> None:
    values = [torch.tensor(value) for value in ([False, False], subject, other)]
    report = compare_values(values[0], values[1], GivenRuns(other_kernels=lambda: [values[2]]))
    assert report.is_right is is_right
    assert any("other kernels" in text for text in report.explained) is (other[0] and subject[0])


def test_of_integers_other_kernels_excuse_no_third_value() -> None:
    eager, other = torch.tensor([1, 2]), torch.tensor([5, 2])
    assert compare_values(eager, torch.tensor([5, 2]), GivenRuns(other_kernels=lambda: [other])).is_right
    assert not compare_values(eager, torch.tensor([4, 2]), GivenRuns(other_kernels=lambda: [other])).is_right


def test_other_kernels_compute_attention_by_its_formula() -> None:
    """Eager's kernel on a CPU returns zeros for two scores that are NaN, and NaN for sixteen."""

    def attention() -> torch.Tensor:
        query, key = torch.tensor([[math.nan], [1.0]])[None, None], torch.ones(1, 1, 2, 1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, key)

    with other_kernels():
        by_formula = attention()
    assert by_formula.isnan().flatten().tolist() == [True, False]
    assert compare_values(attention(), by_formula, GivenRuns(other_kernels=lambda: [by_formula])).is_right
    assert not compare_values(attention(), by_formula * 2, GivenRuns(other_kernels=lambda: [by_formula])).is_right
