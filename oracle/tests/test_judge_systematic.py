"""Systematic error: honest rounding passes, each class of wrong results is found, and too little evidence says nothing."""

from __future__ import annotations

import pytest
import torch

from oracle.judge.systematic import Rule, SystematicReport, may_be_systematic, systematic_error

HALF = [torch.bfloat16, torch.float16]
FLOATS = [*HALF, torch.float32]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
ELEMENTS = 4096


def truths(elements: int = ELEMENTS, *, seed: int = 0) -> torch.Tensor:
    """float64 of both signs, within a few powers of two."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(elements, generator=generator, dtype=torch.float64) * 7 + 1
    return size * torch.where(torch.rand(elements, generator=generator) < 0.5, -1.0, 1.0)


def noisy(truth: torch.Tensor, dtype: torch.dtype, *, eps: float = 1.0) -> list[torch.Tensor]:
    """Four runs, each moved by up to `eps` of the dtype's epsilon."""
    runs = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(100 + seed)
        move = torch.rand(truth.shape, generator=generator, dtype=torch.float64) * 2 - 1
        runs.append((truth * (1 + eps * torch.finfo(dtype).eps * move)).to(dtype))
    return runs


def report_of(subject: torch.Tensor, truth: torch.Tensor, *, eps: float = 1.0) -> SystematicReport:
    return systematic_error(truth.to(subject.dtype), subject, truth, noisy(truth, subject.dtype, eps=eps))


def truncated(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded towards zero."""
    nearest = truth.to(dtype)
    towards_zero = torch.nextafter(nearest, torch.zeros_like(nearest))
    return torch.where(nearest.double().abs() > truth.abs(), towards_zero, nearest)


def next_up(values: torch.Tensor) -> torch.Tensor:
    """The neighbour further from zero: the next pattern of bits."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return (values.view(bits) + 1).view(values.dtype)


def with_bits_cleared(values: torch.Tensor, count: int) -> torch.Tensor:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return (values.view(bits) & ~((1 << count) - 1)).view(values.dtype)


# ------------------------------------------------------------------------------------------------------ honest rounding


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8])
def test_correct_rounding_passes(dtype):
    truth = truths()
    assert report_of(truth.to(dtype), truth).rule is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(5))
def test_a_rounding_more_in_the_same_dtype_passes(dtype, seed):
    truth = truths(seed=seed)
    factor = truths(seed=seed + 50)
    eager, subject = (truth * factor).to(dtype), (truth.to(dtype).double() * factor).to(dtype)
    report = systematic_error(eager, subject, truth * factor, noisy(truth * factor, dtype))
    assert report.rule is None, report.detail


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(5))
def test_a_subject_that_rounds_once_where_eager_rounds_four_times_passes(dtype, seed):
    truth = truths(seed=seed)
    eager = truth.to(dtype)
    for scale in (3.0, 7.0, 1 / 3, 1 / 7):
        eager = (eager.double() * scale).to(dtype)
    report = systematic_error(eager, truth.to(dtype), truth, noisy(truth, dtype, eps=4))
    assert report.rule is None, report.detail


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_that_all_elements_share_passes_where_noise_shares_it_too(dtype):
    truth = truths()
    eps = torch.finfo(dtype).eps
    eager, subject = truth.to(dtype), (truth * (1 + eps)).to(dtype)
    shared = [(truth * (1 + eps * factor)).to(dtype) for factor in (0.9, -0.7, 0.4, -0.8)]
    report = systematic_error(eager, subject, truth, shared)
    assert report.rule is None, report.detail


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_results_that_cancel_pass(dtype):
    terms = truths(256 * 64).reshape(256, 64).to(dtype)
    terms = torch.cat([terms, (-terms.double() * (1 + 1e-3)).to(dtype)], 1)
    eps = torch.finfo(dtype).eps
    subject = terms.flip(1).cumsum(1)[:, -1]
    eager = terms.cumsum(1)[:, -1]
    noise = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        move = torch.rand(terms.shape, generator=generator, dtype=torch.float64) * 2 - 1
        noise.append((terms.double() * (1 + 4 * eps * move)).sum(1).to(dtype))
    report = systematic_error(eager, subject, terms.double().sum(1), noise)
    assert report.rule is None, report.detail


def test_a_bias_that_eager_has_as_well_passes():
    truth = truths()
    eager = truncated(truth, torch.bfloat16)
    assert systematic_error(eager, truth.to(torch.bfloat16), truth, noisy(truth, torch.bfloat16)).rule is None
    assert systematic_error(eager, eager.clone(), truth, noisy(truth, torch.bfloat16)).rule is None


def test_a_complex_product_rounded_otherwise_passes():
    truth = torch.complex(truths(), truths(seed=1))
    eager = truth.to(torch.complex64)
    subject = torch.view_as_complex((torch.view_as_real(eager) * 3).div(3))
    noise = [
        torch.complex(a, b)
        for a, b in zip(*(noisy(part, torch.float32) for part in (truth.real, truth.imag)), strict=True)
    ]
    report = systematic_error(eager, subject, truth, noise)
    assert report.rule is None, report.detail


# ---------------------------------------------------------------------------------------------------------- wrong results


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        (torch.bfloat16, 1.01),
        (torch.bfloat16, 0.99),
        (torch.float16, 1.003),
        (torch.float16, 0.999),
        (torch.float32, 1 + 1e-6),
        (torch.float32, 1 - 2.5e-7),
    ],
)
@pytest.mark.parametrize("elements", [128, ELEMENTS, 1 << 17])
def test_a_scaled_result_is_found(dtype, factor, elements):
    truth = truths(elements)
    report = report_of((truth.to(dtype).double() * factor).to(dtype), truth)
    assert report.rule is Rule.BIAS
    assert not report.is_advisory
    assert f"{'away from' if factor > 1 else 'towards'} zero" in report.detail


@pytest.mark.parametrize("dtype", HALF)
def test_truncation_is_found(dtype):
    truth = truths()
    report = report_of(truncated(truth, dtype), truth)
    assert report.rule in (Rule.BIAS, Rule.SPREAD)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_shift_of_two_ulps_is_found_and_told(dtype):
    truth = 1 + truths().abs() / 8.001  # one power of two
    report = report_of((truth + 2 * torch.finfo(dtype).eps).to(dtype), truth)
    assert report.rule is Rule.BIAS
    assert report.subject is not None
    assert report.subject.shift > 1.5


@pytest.mark.parametrize("dtype", FLOAT8)
def test_one_value_up_everywhere_is_found_in_float8(dtype):
    truth = truths()
    report = report_of(next_up(truth.to(dtype)), truth)
    assert report.rule is Rule.BIAS
    assert "away from zero" in report.detail


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 4])
def test_cleared_bits_are_found(dtype, count):
    truth = truths()
    eager = truth.to(dtype)
    report = systematic_error(eager, with_bits_cleared(eager, count), None if dtype is torch.float64 else truth)
    assert report.rule is Rule.EXACTNESS
    assert f"the last {count} bits" in report.detail


def test_low_bits_that_all_elements_have_from_one_number_may_be_zero():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(1000, generator=generator).double()  # of float32, so that the low bits are zero
    total = 300 + 2.0**-40 + 11 * 2.0**-44
    in_other_order = total + 5 * 2.0**-44
    report = systematic_error(values + total, values + in_other_order, None)
    assert report.rule is None, report.detail
    sums = total + torch.rand(40, 1, dtype=torch.float64, generator=generator)  # one for each row
    rows = values.reshape(40, 25) + sums
    assert systematic_error(rows, with_bits_cleared(rows, 4), None).rule is Rule.EXACTNESS


def test_an_error_of_one_number_that_all_elements_have_is_no_bias():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(1000, dtype=torch.float64, generator=generator)
    ulp = 2.0**-44  # of numbers from 256 to 512
    noise = [values + (300 + steps * ulp) for steps in (1, -2, 1)]
    report = systematic_error(values + 300, values + (300 + 11 * ulp), None, noise)
    assert report.rule is None, report.detail
    moves = [torch.randint(-2, 3, (1000,), generator=generator) * ulp for _ in range(3)]  # of each element by itself
    report = systematic_error(values + 300, values + (300 + 11 * ulp), None, [values + 300 + move for move in moves])
    assert report.rule is Rule.BIAS


def test_results_that_are_whole_numbers_in_fp64_may_have_no_low_bits():
    truth = torch.arange(1, 1001, dtype=torch.float64) * 1024
    eager = (truth.float() * (1 + 2**-23)).float()
    report = systematic_error(eager, truth.float(), truth, noisy(truth, torch.float32))
    assert report.rule is None, report.detail


@pytest.mark.parametrize("dtype", HALF)
def test_noise_in_the_subject_is_found(dtype):
    truth = truths()
    eps = torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(3)
    move = torch.rand(truth.shape, generator=generator, dtype=torch.float64) * 8 - 4
    report = report_of((truth * (1 + eps * move)).to(dtype), truth)
    assert report.rule is Rule.SPREAD
    assert not report.is_advisory


def test_a_coarser_float32_result_is_told_and_no_more():
    truth = truths()
    generator = torch.Generator().manual_seed(3)
    move = torch.rand(truth.shape, generator=generator, dtype=torch.float64) * 8 - 4
    report = report_of((truth * (1 + 2**-23 * move)).float(), truth)
    assert report.rule is Rule.SPREAD
    assert report.is_advisory


def test_what_is_exact_in_eager_must_be_exact():
    truth = torch.arange(1, 101, dtype=torch.float64)
    subject = truth.float()
    subject[50] = torch.nextafter(subject[50], torch.tensor(0.0))
    report = systematic_error(truth.float(), subject, truth, [truth.float()] * 4)
    assert report.rule is Rule.EXACTNESS
    assert report.detail == " is not exact in 1 of 100 elements, where eager gives exactly what fp64 gives"


def test_a_scaled_float64_result_is_found_beside_noise():
    truth = truths()
    noise = noisy(truth, torch.float64)
    assert systematic_error(truth, truth * (1 + 1e-15), None, noise).rule is Rule.BIAS
    assert systematic_error(truth, next_up(truth), None, noise).rule is None


def test_a_scaled_complex_result_is_found():
    truth = torch.complex(truths(), truths(seed=1))
    eager = truth.to(torch.complex64)
    noise = [
        torch.complex(a, b)
        for a, b in zip(*(noisy(part, torch.float32) for part in (truth.real, truth.imag)), strict=True)
    ]
    assert systematic_error(eager, (truth * (1 + 1e-6)).to(torch.complex64), truth, noise).rule is Rule.BIAS


def test_the_sentence_says_how_large_the_error_is_and_what_is_allowed():
    truth = truths()
    report = report_of((truth * 1.01).to(torch.bfloat16), truth)
    assert report.detail.startswith(" has errors of one sign: on average 1.")
    assert "ulp away from zero in 4 096 elements, eager " in report.detail
    assert report.limit is not None
    assert f"(limit {report.limit:.2g})" in report.detail


def test_what_another_kernel_of_eager_does_as_well_passes_and_what_is_worse_does_not():
    truth = truths()
    eps = torch.finfo(torch.bfloat16).eps
    generator = torch.Generator().manual_seed(3)
    moves = torch.rand((3, *truth.shape), generator=generator, dtype=torch.float64) * 2 - 1
    eager = truth.bfloat16()
    coarse, as_coarse, far_coarser = (
        (truth * (1 + eps * move)).bfloat16() for move in moves * torch.tensor([[2], [2], [8]])
    )
    asked = []

    def other_kernels():
        asked.append(True)
        return [None, coarse]

    noise = noisy(truth, torch.bfloat16)
    assert systematic_error(eager, eager, truth, noise, other_kernels).rule is None
    assert not asked
    assert systematic_error(eager, as_coarse, truth, noise).rule is Rule.SPREAD
    excused = systematic_error(eager, as_coarse, truth, noise, other_kernels)
    assert excused.rule is None
    assert excused.excused.endswith("and eager's other kernels err as much")
    assert systematic_error(eager, far_coarser, truth, noise, other_kernels).rule is Rule.SPREAD


# ------------------------------------------------------------------------------------------------------- too little to say


@pytest.mark.parametrize("dtype", FLOATS)
def test_few_elements_say_nothing(dtype):
    truth = truths(31)
    report = report_of((truth * 1.01).to(dtype), truth)
    assert report.rule is None
    assert report.abstained == "fewer than 32 elements"


def test_few_distinct_values_say_nothing():
    truth = truths(8).repeat(512)
    report = report_of((truth * 1.01).to(torch.bfloat16), truth)
    assert report.rule is None
    assert report.n_eff == 8
    assert report.abstained == "fewer than 32 distinct values"


def test_zeros_subnormal_and_special_values_say_nothing():
    truth = torch.cat(
        [torch.zeros(100), torch.full((100,), 1e-39), torch.full((100,), torch.inf), torch.full((100,), torch.nan)]
    )
    truth = truth.double() * (1 + torch.arange(400) * 1e-4)
    eager = truth.to(torch.bfloat16)
    assert report_of(torch.full_like(eager, 3.0), truth).n_eff == 0
    huge = 1e39 * (1 + torch.arange(400, dtype=torch.float64) * 1e-4)
    assert systematic_error(eager, torch.full_like(eager, 3e38), huge).n_eff == 0


def test_without_truth_and_noise_nothing_is_said():
    truth = truths()
    report = systematic_error(truth, truth * (1 + 1e-14), None)
    assert report.rule is None
    assert report.abstained == "neither a wider dtype nor noise to measure errors with"


def test_two_dtypes_are_refused():
    with pytest.raises(TypeError, match="one float dtype and shape"):
        systematic_error(torch.ones(64), torch.ones(64).half(), None)


# ------------------------------------------------------------------------------------------------------------- the screen


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_screen_lets_rare_and_even_differences_go(dtype):
    values = truths().to(dtype)
    rare = values.clone()
    rare[::20] = next_up(rare[::20])
    even = torch.where(torch.arange(ELEMENTS) % 4 == 0, next_up(values), values)
    even = torch.where(torch.arange(ELEMENTS) % 4 == 2, torch.nextafter(values, torch.zeros_like(values)), even)
    assert not may_be_systematic(values, rare)
    assert not may_be_systematic(values, even)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_the_screen_keeps_what_the_rules_find(dtype):
    values = truths()
    eager = values.to(dtype)
    eps = torch.finfo(dtype).eps
    assert may_be_systematic(eager, (values * (1 + 1.3 * eps)).to(dtype))
    assert may_be_systematic(eager, with_bits_cleared(eager, 2))
    if dtype is not torch.float64:
        assert may_be_systematic(eager, truncated(values, dtype))


# -------------------------------------------------------------------------------------------------------------- aggregation


def test_biases_of_several_tensors_add_up():
    one, other = (report_of((truths(seed=seed) * 1.001).half(), truths(seed=seed)).bias for seed in range(2))
    assert one is not None
    assert other is not None
    both = one + other
    assert (both.tensors, both.weight, both.dtype) == (2, 2 * ELEMENTS, "float16")
    assert both.subject_mean * both.eps == pytest.approx(1e-3, rel=0.1)
    assert abs(both.eager_mean) < 0.05
    assert both.standard_error < max(one.standard_error, other.standard_error)


def test_a_bias_measured_from_eager_is_not_added():
    truth = truths()
    report = systematic_error(truth, truth * (1 + 1e-15), None, noisy(truth, torch.float64))
    assert report.rule is Rule.BIAS
    assert report.bias is None
