"""Which sums overflow in another order, and that nothing else becomes infinite under noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from oracle.judge.values import GivenRuns, compare_values
from oracle.reruns.noise import RoundingNoise
from oracle.reruns.overflows import with_open_overflows

LARGEST = torch.finfo(torch.float32).max
LARGEST_DOUBLE = torch.finfo(torch.float64).max


def row(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def double(*factors: float) -> torch.Tensor:
    """Multiples of the largest number."""
    return row(*(factor * LARGEST_DOUBLE for factor in factors), dtype=torch.float64)


def noisy(fn: Callable[[], Any], seed: int) -> Any:
    with RoundingNoise(seed):
        return fn()


def is_right(fn: Callable[[], torch.Tensor], subject: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether a subject's value is, beside eager's, fp64 and noise."""
    runs = [noisy(fn, seed) for seed in range(3)]
    return compare_values(fn(), subject, GivenRuns(truth=lambda: truth, noise=lambda: runs)).is_right


# What another order gives. NaN stands for partial sums of both infinities: which of them eager finds, or NaN, is its processor's.
SUMS: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
    "positive terms first": (lambda: row(-LARGEST, LARGEST, LARGEST / 2, 3.0).sum(), math.inf),
    "negative terms first": (lambda: row(LARGEST, -LARGEST, -LARGEST / 2, 3.0).sum(), -math.inf),
    "two accumulators": (lambda: row(LARGEST, -LARGEST, LARGEST, -LARGEST).sum(), math.nan),
    "mean": (lambda: row(LARGEST, LARGEST / 2, -LARGEST).mean(), math.inf),
    "dot": (lambda: row(2.0, 1.0).dot(row(-LARGEST, LARGEST)), -math.inf),
    "mm": (lambda: row(-2.0, 2.0, 1.0)[None] @ row(LARGEST, LARGEST, 1.0)[:, None], math.nan),
    "addmm": (lambda: torch.addmm(row(LARGEST)[None], row(LARGEST)[None], row(1.5)[None], alpha=-1), -math.inf),
    "convolution": (
        lambda: torch.conv1d(row(0.0, 1.0, 2.0)[None, None], row(1.0, LARGEST, -LARGEST)[None, None]),
        -math.inf,
    ),
    "float64": (lambda: double(1, -1, -1, 1).sum(), math.nan),
    "float64, positive terms first": (lambda: double(-1, 1, 0.5).sum(), math.inf),
    "float64, mean": (lambda: double(1, -1, -0.5).mean(), -math.inf),
    "float64, cumsum": (lambda: double(-1, 1, 0.5).cumsum(0)[2], math.inf),
    "float64, dot": (lambda: double(-1, 1).dot(row(2.0, 1.0, dtype=torch.float64)), -math.inf),
    "float64, mm": (lambda: row(-2.0, 2.0, 1.0, dtype=torch.float64)[None] @ double(1, 1, 0.5)[:, None], math.nan),
    "float64, addmv": (
        lambda: torch.addmv(double(1), double(0.5)[None], row(-1.5, dtype=torch.float64), beta=1.5),
        math.inf,
    ),
    "float64, convolution": (
        lambda: torch.conv1d(double(1, -1)[None, None], row(1.0, 0.9, dtype=torch.float64)[None, None], double(0.75)),
        math.inf,
    ),
    "float64, added at indices": (
        lambda: torch.zeros(1, dtype=torch.float64).index_add(0, torch.tensor([0, 0]), double(0.5, -0.75), alpha=-2),
        math.inf,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_overflows_in_another_order_does_so_under_noise(name: str) -> None:
    fn, other = SUMS[name]
    if math.isnan(other) and math.isnan(fn().item()):
        other = math.inf
    assert noisy(fn, 0).item() == pytest.approx(other, nan_ok=True)


def test_of_partial_sums_of_both_infinities_noise_gives_what_eager_does_not() -> None:
    """Libraries give NaN or one of the infinities for this product."""
    for found in (math.nan, math.inf, -math.inf):
        left, right = row(-2.0, 2.0, 1.0)[None], row(LARGEST, LARGEST, 1.0)[:, None]
        other = with_open_overflows(torch.ops.aten.mm.default, (left, right), {}, row(found)[None]).item()
        assert other == math.inf if math.isnan(found) else math.isnan(other)


@pytest.mark.parametrize(("signs", "is_open"), [((1.0, -1.0), False), ((1.0, -1.0, 1.0, -1.0), True)])
def test_a_gradient_is_a_sum_as_well(signs: tuple[float, ...], is_open: bool) -> None:
    weight, inputs = row(1.0, 1.0).requires_grad_(), row(LARGEST, 1.0)
    terms = row(*signs)[:, None] * inputs

    def gradient() -> torch.Tensor:
        return torch.autograd.grad((weight * terms).sum(), weight)[0]

    assert is_open or gradient().tolist() == [0.0, 0.0]  # else by the order, which is the processor's
    first, second = noisy(gradient, 0).tolist()
    assert math.isfinite(first) is not is_open
    assert second == pytest.approx(0.0, abs=1e-5)


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, training: bool = False) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, torch.zeros(2), torch.full((2,), 1e-4), weight, bias, training)


NORMS: dict[str, Callable[..., torch.Tensor]] = {
    "batch": batch_norm,
    "batch in training": lambda x, weight, bias: batch_norm(x, weight, bias, training=True),
    "layer": lambda x, weight, bias: torch.nn.functional.layer_norm(x, (2,), weight, bias),
    "group": lambda x, weight, bias: torch.nn.functional.group_norm(x, 1, weight, bias),
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_the_parameters_of_a_norm_are_sums(name: str) -> None:
    """The first column of gradients has partial sums that overflow to both infinities, the second one none."""
    x = torch.tensor([[1.0, 3.0], [4.0, 1.0], [1.0, 3.0], [4.0, 1.0]])
    arriving = row(LARGEST, LARGEST, -LARGEST, -LARGEST)[:, None] * row(1.0, 1e-30)

    def gradients() -> tuple[torch.Tensor, ...]:
        weight, bias = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        return torch.autograd.grad(NORMS[name](x, weight, bias), (weight, bias), arriving)

    expected = gradients()
    for (first, second), (eager, still) in zip(noisy(gradients, 0), expected, strict=True):
        assert not first.isfinite()
        assert first.isnan() != eager.isnan()
        assert second == pytest.approx(still.item(), rel=1e-3, abs=1e6)  # of terms of 1e10


@pytest.mark.parametrize("name", NORMS)
def test_a_wrong_gradient_of_a_norm_is_wrong_beside_one_that_overflows(name: str) -> None:
    x = torch.tensor([[1.0, 3.0], [4.0, 1.0], [1.0, 3.0], [4.0, 2.0]])
    arriving = torch.stack([row(LARGEST, LARGEST, -LARGEST, -LARGEST), row(1.0, 2.0, 3.0, 5.0)], 1)

    def gradient(kind: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        weight, bias = (torch.full((2,), float(i), dtype=dtype, requires_grad=True) for i in (1, 0))
        if dtype is torch.float64 and name.startswith("batch"):
            running = torch.zeros(2, dtype=dtype), torch.full((2,), 1e-4, dtype=dtype)
            normalised = torch.nn.functional.batch_norm(x.to(dtype), *running, weight, bias, "training" in name)
        else:
            normalised = NORMS[name](x.to(dtype), weight, bias)
        return torch.autograd.grad(normalised, (weight, bias), arriving.to(dtype))[kind]

    for kind in (0, 1):
        eager, truth = gradient(kind), gradient(kind, torch.float64)
        runs = [noisy(lambda kind=kind: gradient(kind), seed) for seed in range(3)]
        for factor in (1.0, 1.1, math.nan, math.inf):
            subject = torch.stack([torch.tensor(math.nan), eager[1] * factor])
            found = compare_values(
                eager, subject, GivenRuns(truth=lambda truth=truth: truth, noise=lambda runs=runs: runs)
            )
            assert found.is_right is (factor == 1.0)


@pytest.mark.parametrize("factor", [1.0, 1.1, math.nan, math.inf])
def test_a_wrong_product_in_float64_is_wrong_beside_one_that_overflows(factor: float) -> None:
    def product() -> torch.Tensor:
        largest = double(1, 1)[0].item()
        return row(-2.0, 2.0, 1.0, dtype=torch.float64)[None] @ torch.tensor(
            [[largest, 3.0], [largest, 5.0], [1.0, 7.0]], dtype=torch.float64
        )

    eager = product()
    subject = torch.stack([torch.tensor(math.inf, dtype=torch.float64), eager[0, 1] * factor])[None]
    runs = [noisy(product, seed) for seed in range(3)]
    assert compare_values(eager, subject, GivenRuns(noise=lambda: runs)).is_right is (factor == 1.0)


def test_gradients_that_one_kernel_gives_unasked_and_another_leaves_out_are_no_sums() -> None:
    """A grouped convolution of volumes returns the gradient of the weight beside that of the bias in float32, and only the latter
    in float64.
    """
    x, weight = torch.ones(3, 4, 1, 3, 2), torch.full((2, 2, 1, 3, 1), LARGEST)
    bias = torch.zeros(2, requires_grad=True)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.nn.functional.conv3d(x, weight, bias, groups=2).sum(), bias)[0]

    torch.testing.assert_close(noisy(gradient, 0), gradient())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("values", "is_open"), [((1, 1, -1, -1, -1, -1), True), ((1, 1, 0, 0, 0, 0), False)])
@pytest.mark.usefixtures("two_threads")
def test_where_eager_has_nan_another_order_has_an_infinity(values: tuple[float, ...], *, is_open: bool) -> None:
    """Images are added up first, one by each thread: infinity and -infinity, which together are NaN."""
    images, weight = (row(*values) * LARGEST).reshape(2, 1, 3), row(1.0)[None, None].requires_grad_()

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.conv1d(images, weight).sum(), weight)[0]

    assert bool(gradient().isnan().all()) is is_open
    truth = images.double().sum()[None, None, None]
    other = torch.full((1, 1, 1), -math.inf * truth.sign().item())
    assert is_right(gradient, other, truth) is is_open


FINITE: dict[str, Callable[[], torch.Tensor]] = {
    "terms of both signs": lambda: row(LARGEST, -LARGEST, 3.0).sum(),
    "a mask and scores": lambda: torch.baddbmm(row(-LARGEST)[None, None], row(-9.0)[None, None], row(9.0)[None, None]),
    "the largest number and dust": lambda: row(LARGEST, 1e30).sum(),
    "float16, which is added up in float32": lambda: row(6e4, 6e4, -6e4, dtype=torch.float16).sum(),
    "float64": lambda: double(1, -1, 0, 2.0**-60).sum(),
    "float64, where what is computed of its terms is rounded up": lambda: double(1, -0.5000000000000001).sum(),
    "float64, products": lambda: double(1, -1).dot(row(1.0, 1.0, dtype=torch.float64)),
    "not a sum": lambda: row(LARGEST, LARGEST).amax() - row(LARGEST).amax(),
}


@pytest.mark.parametrize("name", FINITE)
def test_what_overflows_in_no_order_stays_finite(name: str) -> None:
    assert all(noisy(FINITE[name], seed).isfinite().all() for seed in range(4))


def test_of_a_result_only_the_elements_that_can_overflow_are_open() -> None:
    x = torch.stack([row(LARGEST, LARGEST / 2, -LARGEST), row(1.0, 2.0, 4.0)])
    truth = x.double().sum(1)
    assert is_right(lambda: x.sum(1), row(math.inf, 7.0), truth)
    assert not is_right(lambda: x.sum(1), row(math.inf, 7.1), truth)
    assert not is_right(lambda: x.sum(1), row(LARGEST / 2, math.inf), truth)


def test_an_infinity_is_wrong_where_no_order_gives_it() -> None:
    x = row(LARGEST, -LARGEST, 3.0)
    assert not is_right(lambda: x.sum(), torch.tensor(math.inf), x.double().sum())


def test_infinite_terms_stay_as_they_are() -> None:
    assert noisy(lambda: row(math.inf, LARGEST, 1.0).sum(), 0).item() == math.inf
    assert noisy(lambda: row(-math.inf, LARGEST, 1.0).sum(), 0).item() == -math.inf
    assert math.isnan(noisy(lambda: row(-math.inf, math.inf, 1.0).sum(), 0).item())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_finite_terms_may_overflow_to_the_other_infinity_before_an_infinite_one(sign: float) -> None:
    infinite, x, ones = row(sign * math.inf), sign * row(math.inf, -LARGEST, -LARGEST), torch.ones(1)
    for fn in (lambda: x.sum()[None], lambda: torch.conv1d(x[None, None], row(1, 1, 1)[None, None])[0, 0]):
        truth = infinite.double()
        assert math.isnan(noisy(fn, 0).item())
        assert is_right(fn, ones * math.nan, truth)
        assert is_right(fn, infinite, truth)
    for unbent in (sign * row(math.inf, LARGEST, LARGEST), sign * row(math.inf, -LARGEST, 1.0)):
        assert not is_right(lambda unbent=unbent: unbent.sum()[None], ones * math.nan, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_largest_number_and_its_negative_leave_no_digits_of_the_others(dtype: torch.dtype) -> None:
    """Both are where noise ends; of the others what comes between the two is lost, in any order something else."""
    largest = torch.finfo(dtype).max
    numbers = row(largest, -2.0, -largest, 3.5, dtype=dtype)

    def mean_of_batch() -> torch.Tensor:
        mean = torch.zeros(1, dtype=dtype)
        torch.nn.functional.batch_norm(numbers[:, None], mean, mean.clone(), training=True, momentum=1.0)
        return mean

    product = torch.ones(1, 4, dtype=dtype)
    for fn in (numbers.sum, numbers.mean, lambda: product @ numbers[:, None], mean_of_batch):
        seen = {float(noisy(fn, seed)) for seed in range(20)}
        assert all(map(math.isfinite, seen))
        assert max(map(abs, seen)) > largest * torch.finfo(dtype).eps / 16


def test_arguments_and_strides_stay() -> None:
    a, b = torch.full((2, 3), LARGEST), torch.full((3, 4), -1.0)
    result = noisy(lambda: torch.mm(a, b.t().contiguous().t()), 0)
    assert result.stride() == torch.mm(a, b).stride()
    assert bool((a == LARGEST).all())
    assert bool((b == -1).all())


OPEN, LARGE, SMALL = [LARGEST, LARGEST, -LARGEST, -LARGEST], [LARGEST, LARGEST, 0.0, -1.0], [1.0, 2.0, 3.0, 6.0]


IMAGES = torch.tensor([[OPEN, LARGE, SMALL]])
DOUBLE_IMAGES = torch.where(IMAGES.abs() < LARGEST, IMAGES.double(), IMAGES.double().sign() * LARGEST_DOUBLE)
HALF_IMAGES = IMAGES.clamp(-3e38, 3e38).bfloat16()


@pytest.mark.parametrize(
    ("images", "training", "is_open"),
    [
        (IMAGES, True, False),
        (IMAGES.mT.contiguous().mT, True, True),
        (IMAGES.mT.contiguous().mT, False, False),
        (IMAGES[0].mT.contiguous(), True, True),
        (IMAGES[0].mT.contiguous()[:, :, None], True, True),
        (DOUBLE_IMAGES, True, True),
        (DOUBLE_IMAGES.mT.contiguous().mT, False, False),
        (DOUBLE_IMAGES[0].mT.contiguous(), True, True),
        (HALF_IMAGES, True, True),
        (HALF_IMAGES[0].mT.contiguous(), True, True),
    ],
    ids=[
        *("contiguous", "channels last", "evaluation", "no pixels", "one pixel"),
        *("float64", "float64, evaluation", "float64, no pixels", "bfloat16", "bfloat16, no pixels"),
    ],
)
def test_statistics_of_a_batch_norm_are_sums(images: torch.Tensor, *, training: bool, is_open: bool) -> None:
    """Channels: all of NaN and infinity, an infinity in every order, numbers. Of contiguous images eager adds up in float64."""
    seen = []
    for seed in range(2):
        norm = torch.nn.BatchNorm1d(3, momentum=1.0, dtype=images.dtype).train(training)
        plain = torch.nn.BatchNorm1d(3, momentum=1.0, dtype=images.dtype).train(training)
        expected, output = plain(images), noisy(lambda norm=norm: norm(images), seed)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert plain.running_mean is not None
        seen.append((norm.running_mean[0].item(), norm.running_var[0].item(), output[:, 0]))
        rounding = 2e-2 if images.dtype is torch.bfloat16 else 1e-4
        assert norm.running_mean[1:].allclose(plain.running_mean[1:], rtol=rounding)
        assert output[:, 2].allclose(expected[:, 2], rtol=rounding, atol=rounding)
        own = plain.running_mean[0].item()
        assert (math.isnan(own) != math.isnan(norm.running_mean[0].item())) is is_open
    assert all(math.isfinite(mean) is not is_open for mean, _, _ in seen)
    assert all(bool(output.isnan().all()) is is_open for _, _, output in seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_group", [False, True])
def test_rows_whose_numbers_lie_too_far_apart_have_no_mean_in_one_order(*, is_group: bool, dtype: torch.dtype) -> None:
    """The largest number minus the smallest one overflows: of two and four of them only."""
    rows = torch.tensor(
        [[1.0, 2.0, 3.0, 5.0], [1e38, -3e38, 1.0, 2.0], [1.5e38, -1.5e38, 1.0, 2.0], [-3e38, 0.0, 3e38, 1.0]]
    )
    rows = rows.to(dtype)

    def norm() -> tuple[torch.Tensor, ...]:
        if is_group:
            return torch.native_group_norm(rows[:, None], None, None, 4, 1, 4, 1, 1e-5)
        return torch.native_layer_norm(rows, (4,), None, None, 1e-5)

    own = norm()[1].flatten()
    for seed in range(2):
        output, mean, deviation = noisy(norm, seed)
        assert output.stride() == norm()[0].stride()
        assert output.reshape(4, 4)[[1, 3]].isnan().all()
        assert deviation.flatten()[[1, 3]].isnan().all()
        assert output.reshape(4, 4)[0].isfinite().all()
        assert mean.stride() == norm()[1].stride()
        assert mean.isfinite().flatten().tolist() == [True, False, True, False]
        assert (mean.flatten().isnan() != own.isnan())[[1, 3]].all()
