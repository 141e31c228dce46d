"""Where the rules about systematic errors begin: thresholds, the elements that count, the sample, the units of errors.

Results lie on the grid of their dtype between 1 and 2, and their truths beside them, so that every error is known in ULP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from oracle.judge.systematic import SAMPLE, Rule, SystematicReport, may_be_systematic, systematic_error
from oracle.judge.tolerance import TABLE

MANY = 1 << 14
UP_AND_DOWN = torch.tensor([1.0, -1.0]).double()


def alternating(elements: int) -> Tensor:
    return UP_AND_DOWN.repeat(elements // 2)


def grid(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Every fifth number of the dtype from 1 on, so that last bits are even and odd, as float64."""
    return 1 + TABLE[dtype].eps * 5 * torch.arange(elements).double()


def moved(values: Tensor, ulps: Tensor | float, dtype: torch.dtype = torch.float32) -> Tensor:
    return (values + TABLE[dtype].eps * ulps).to(dtype)


def first(share: float, elements: int) -> Tensor:
    """1 for the first elements, 0 for the others."""
    return (torch.arange(elements) < round(share * elements)).double()


def report_of(
    ulps: Tensor | float,
    *,
    elements: int = MANY,
    error: float = 0.25,
    noise: Sequence[Tensor | float] = (),
    dtype: torch.dtype = torch.float32,
    sign: Tensor | float = 1.0,
) -> SystematicReport:
    """The report on a subject `ulps` from eager. Eager's errors are `error`, up and down in turn; `noise` moves eager by ULPs."""
    values = grid(elements, dtype) * sign
    truth = values + TABLE[dtype].eps * error * alternating(elements)
    runs = [moved(values, run, dtype) for run in noise]
    return systematic_error(values.to(dtype), moved(values, ulps, dtype), truth, runs)


# --------------------------------------------------------------------------------------------------------------------- bias


@pytest.mark.parametrize(("share", "rule"), [(0.112, None), (0.118, Rule.BIAS)])
def test_a_bias_is_more_than_a_tenth_of_an_ulp_and_five_standard_errors(share: float, rule: Rule | None) -> None:
    """One standard error of 16 384 elements is 0.003 ULP."""
    assert report_of(first(share, MANY)).rule is rule
    assert report_of(-first(share, MANY)).rule is rule


@pytest.mark.parametrize(("share", "is_advisory"), [(0.2, True), (0.4, True), (0.44, False)])
def test_a_bias_that_good_functions_have_is_advisory_in_float32(share: float, *, is_advisory: bool) -> None:
    """expm1 by 0.2 ULP, a product with 0.001 in place of a quotient by 0.4; of 16 384 elements one standard error is 0.004."""
    for sign in (1, -1):
        report = report_of(sign * first(share, MANY))
        assert (report.rule, report.is_advisory) == (Rule.BIAS, is_advisory)


@pytest.mark.parametrize(("share", "rule"), [(1.0, None), (0.99, None), (0.1, Rule.BIAS)])
def test_beside_eager_a_bias_is_more_than_an_ulp(share: float, rule: Rule | None) -> None:
    values = grid(MANY, torch.float64)
    runs = [moved(values, alternating(MANY), torch.float64)]
    ulps = first(share, MANY) if rule is None else 1 + first(share, MANY)
    report = systematic_error(values, moved(values, ulps, torch.float64), None, runs)
    assert report.rule is rule
    assert report.abstained == "no wider dtype: errors are measured from eager"


def test_a_bias_is_one_away_from_zero_or_one_to_one_side() -> None:
    both = alternating(MANY)
    away, up = report_of(both, sign=both), report_of(torch.ones(MANY).double(), sign=both)
    assert (away.rule, up.rule) == (Rule.BIAS, Rule.BIAS)
    assert "ulp away from zero in 16 384 elements" in away.detail
    assert "ulp too large in" in up.detail
    assert "ulp towards zero in" in report_of(-both, sign=both).detail
    assert "ulp too small in" in report_of(-torch.ones(MANY).double(), sign=both).detail


def test_figures_are_mean_errors_in_ulp() -> None:
    report = report_of(1.0)
    assert report.subject is not None
    assert report.eager is not None
    assert report.subject.shift == pytest.approx(1.0)
    assert report.subject.growth == pytest.approx(1.0)
    assert report.subject.spread == pytest.approx(0.25)
    assert report.eager.growth == pytest.approx(0.0, abs=1e-9)
    assert report.eager.spread == pytest.approx(0.25)
    assert report.n_eff == MANY


def test_in_formats_of_few_digits_growth_is_the_relative_error() -> None:
    """Three times an epsilon: 3 ULP at 1.0 and 6 below 2.0."""
    truth = torch.linspace(1, 1.99, 4096, dtype=torch.float64)
    report = systematic_error(truth.half(), (truth * (1 + 3 * 2**-10)).half(), truth)
    assert report.subject is not None
    assert report.subject.growth == pytest.approx(3.0, rel=0.02)
    assert report.subject.shift == pytest.approx(4.5, rel=0.02)


def test_errors_are_measured_in_what_noise_moves() -> None:
    """Two ULP on one side are a bias where eager moves by one, and none where it moves by 32 in both directions."""
    both = alternating(MANY)
    assert report_of(2.0, noise=[both, -both]).rule is Rule.BIAS
    assert report_of(2.0, noise=[32 * both, both]).rule is None
    assert "times its rounding noise" in report_of(8.0, noise=[32 * both, both]).detail
    assert "times its rounding noise" in report_of(2.0, noise=[2 * both, both]).detail
    assert " ulp away from zero" in report_of(2.0, noise=[both, -both]).detail


def test_an_error_that_noise_gives_all_elements_is_no_bias() -> None:
    values = report_of(2.0, noise=[1.0, -1.0, 1.0, -1.0])
    assert values.rule is None
    assert report_of(20.0, noise=[1.0, -1.0, 1.0, -1.0]).rule is Rule.BIAS


def test_what_noise_shares_is_measured_from_eager_and_not_from_the_truth() -> None:
    """Eager itself is an ULP too large, and noise moves it by nothing on average."""
    values, both = grid(MANY), alternating(MANY)
    truth = values - TABLE[torch.float32].eps * (1 + 0.25 * both)
    runs = [moved(values, both), moved(values, -both)]
    assert systematic_error(values.float(), values.float(), truth, runs).rule is None
    assert systematic_error(values.float(), moved(values, 1.0), truth, runs).rule is Rule.BIAS


def test_a_subject_that_hardly_errs_may_not_share_all_that_noise_shares() -> None:
    """Runs err by 1 on average and by 4 up and down; the subject by 1, and by less than 4 up and down."""
    both = alternating(MANY)
    runs = [1 + 4 * both, -1 - 4 * both, 1 - 4 * both, 4 * both - 1]
    assert report_of(1.0, noise=runs).rule is Rule.BIAS
    assert report_of(1 + 4 * both, noise=runs).rule is None


@pytest.mark.parametrize(("ulps", "is_bias"), [(5.0, False), (6.0, True)])
def test_a_subject_that_errs_more_than_noise_may_share_what_noise_shares(ulps: float, *, is_bias: bool) -> None:
    """Five times what the runs err on average, whatever else the subject errs."""
    report = report_of(ulps + 2 * alternating(MANY), noise=[1.0, -1.0, 1.0, -1.0])
    assert (report.rule is Rule.BIAS) is is_bias


def test_the_standard_error_of_a_relative_error_is_that_of_a_slope() -> None:
    truth = torch.linspace(1, 1.99, 4096, dtype=torch.float64)
    bias = systematic_error(truth.half(), (truth * (1 + 3 * 2**-10)).half(), truth).bias
    assert bias is not None
    assert bias.standard_error == pytest.approx(0.29 / float(truth.square().sum().sqrt()), rel=0.05)
    assert (bias.tensors, bias.weight, bias.eps) == (1, bias.weight, 2.0**-10)


def test_equal_truths_are_one_piece_of_evidence() -> None:
    """A quarter of 64 truths err by an ULP, each 256 times: five standard errors of 64 truths are more than a quarter."""
    few = grid(64).repeat_interleave(256)
    error = TABLE[torch.float32].eps * 0.25 * alternating(64).repeat_interleave(256)
    ulps = (torch.arange(64) % 4 == 0).double().repeat_interleave(256)
    report = systematic_error(few.float(), moved(few, ulps), few + error)
    assert (report.rule, report.n_eff) == (None, 64)
    many = report_of((torch.arange(MANY) % 4 == 0).double())
    assert (many.rule, many.n_eff) == (Rule.BIAS, MANY)


# ------------------------------------------------------------------------------------------------------------------- spread


@pytest.mark.parametrize(
    ("share", "error", "rule"),
    [
        (0.22, 0.2, None),  # fewer than a quarter
        (0.30, 0.2, None),  # a quarter may be this much by chance
        (0.36, 0.2, Rule.SPREAD),
        (0.36, 0.3, None),  # errors of 0.7 ULP, where correct rounding has a quarter above 0.375
    ],
)
def test_a_half_is_coarse_where_a_quarter_errs_twice_as_much_as_rounding(
    share: float, error: float, rule: Rule | None
) -> None:
    """There are 1024 elements. Where the subject differs from eager, it is on the other side of the truth."""
    size, both = 1 << 10, alternating(1 << 10)
    values = 1 + 2.0**-10 * torch.arange(size).double()
    truth = values + 2.0**-10 * error * both
    report = systematic_error(values.half(), moved(values, both * first(share, size), torch.float16), truth)
    assert report.rule is rule, report.detail
    assert not report.is_advisory


@pytest.mark.parametrize(("error", "rule"), [(0.2, None), (0.1, Rule.SPREAD)])
def test_a_float32_is_coarse_where_its_errors_are_three_times_those_of_rounding(
    error: float, rule: Rule | None
) -> None:
    report = report_of(alternating(MANY), error=error)
    assert report.rule is rule
    assert report.is_advisory is (rule is not None)


@pytest.mark.parametrize(("ulps", "rule"), [(2.0, Rule.SPREAD), (3.0, None)])
def test_the_spread_of_float32_is_that_of_elements_that_noise_hardly_moves(ulps: float, rule: Rule | None) -> None:
    both = alternating(MANY)
    assert report_of(3 * both, noise=[ulps * both, -ulps * both]).rule is rule


# ---------------------------------------------------------------------------------------------------------------- exactness


def test_one_cleared_bit_is_found() -> None:
    values = grid(4096)
    cleared = (values.float().view(torch.int32) & ~1).view(torch.float32)
    report = systematic_error(values.float(), cleared, values + 1e-9)
    assert report.rule is Rule.EXACTNESS
    assert " has the last bit of its significands cleared in 100% of 4 096 elements" in report.detail
    assert (report.n_eff, report.limit, report.abstained) == (4096, 0.98, "")


def test_bits_before_the_last_one_may_be_zero() -> None:
    values = 1 + 2.0**-23 * torch.randint(1 << 20, (4096,), generator=torch.Generator().manual_seed(0)).double()
    without = (values.float().view(torch.int32) & ~0b1110).view(torch.float32)
    assert systematic_error(values.float(), without, values + 1e-9).rule is not Rule.EXACTNESS


def test_of_a_significand_of_two_bits_the_last_may_be_cleared_and_not_all() -> None:
    exponents = torch.arange(-14, 15).double().exp2()
    values = torch.stack([exponents, -exponents, 1.25 * exponents, -1.25 * exponents]).reshape(-1)
    truth = values * 1.01
    subject = torch.stack([exponents, -exponents] * 2).reshape(-1)
    report = systematic_error(values.to(torch.float8_e5m2), subject.to(torch.float8_e5m2), truth)
    assert report.rule is Rule.EXACTNESS
    assert "the last bit of" in report.detail


def test_what_is_not_exact_says_how_much_evidence_there_was() -> None:
    values = grid(100)
    report = systematic_error(values.float(), moved(values, first(0.01, 100)), values)
    assert (report.rule, report.n_eff, report.limit) == (Rule.EXACTNESS, 100, 0.0)


# ------------------------------------------------------------------------------------------------- enough elements, and which


def test_thirty_two_elements_are_enough() -> None:
    assert report_of(2.0, elements=32).rule is Rule.BIAS
    values = grid(32)
    assert systematic_error(values.float(), moved(values, first(0.03, 32)), values).rule is Rule.EXACTNESS
    assert may_be_systematic(values.float(), moved(values, 2.0))
    assert not may_be_systematic(values[:31].float(), moved(values[:31], 2.0))


def test_thirty_two_elements_of_which_one_says_nothing_are_not_enough() -> None:
    values = grid(32)
    values[7] = 0.0
    assert systematic_error(values.float(), moved(values, 2.0), values + 1e-9).rule is None
    assert not may_be_systematic(values.float(), moved(values, 2.0))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("side", ["eager", "subject", "noise"])
def test_an_element_without_digits_on_one_side_does_not_count(side: str, number: float) -> None:
    values = grid(100)
    sides = {name: values.float() for name in ("eager", "subject", "noise")}
    sides[side][10:40] = number
    truth = values + TABLE[torch.float32].eps * 0.25 * alternating(100)
    report = systematic_error(sides["eager"], sides["subject"], truth, [sides["noise"]])
    assert (report.rule, report.n_eff) == (None, 70)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_truth_beyond_the_range_of_the_dtype_does_not_count(sign: int) -> None:
    values = sign * grid(100)
    eager, truth = values.float(), values.clone()
    truth[:30], eager[:30] = sign * 1e39, sign * 3e38
    assert systematic_error(eager, eager.clone(), truth, [eager]).n_eff == 70


def test_the_smaller_part_of_a_complex_number_owes_no_more_digits_than_the_larger() -> None:
    values, eps = grid(4096), TABLE[torch.complex64].eps
    error = eps * 0.25 * alternating(4096)
    truth = torch.complex(1024 * (values + error), values + 100 * error)
    eager = torch.complex(1024 * values, values).to(torch.complex64)
    small = torch.complex(1024 * values, values + 50 * eps).to(torch.complex64)
    large = torch.complex(1024 * (values + 2 * eps), values).to(torch.complex64)
    assert systematic_error(eager, small, truth).rule is None
    assert systematic_error(eager, large, truth).rule is Rule.BIAS


def test_parts_of_complex_numbers_that_are_zero_do_not_count() -> None:
    values = grid(100)
    eager = torch.complex(values, torch.full((100,), 1e-9).double()).to(torch.complex64)
    assert systematic_error(eager, eager.clone(), torch.complex(values + 1e-9, torch.zeros(100).double())).n_eff == 100


def test_neighbouring_real_numbers_have_units_of_their_own() -> None:
    """2 ULP of the small numbers between large ones."""
    scale = torch.tensor([1.0, 1024.0]).double().repeat(2048)
    values, eps = grid(4096), TABLE[torch.float32].eps
    truth = scale * (values + eps * 0.25 * torch.tensor([1.0, 1.0, -1.0, -1.0]).double().repeat(1024))
    eager, subject = (scale * values).float(), (scale * (values + eps * 2 * (scale == 1))).float()
    assert systematic_error(eager, subject, truth).rule is Rule.BIAS


def test_of_large_tensors_always_the_same_sample_is_looked_at() -> None:
    values = grid(1 << 16)
    reports = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        reports.append(systematic_error(values.float(), moved(values, 2.0), values + 1e-9))
    assert reports[0] == reports[1]
    assert SAMPLE / 2 < reports[0].n_eff < SAMPLE
    assert SAMPLE == 1 << 14


# ----------------------------------------------------------------------------------------------- what is compared with what


def test_powers_of_two_have_no_last_place() -> None:
    powers = torch.arange(-60, 60).double().exp2()
    eager, subject = powers.to(torch.float8_e8m0fnu), (2 * powers).to(torch.float8_e8m0fnu)
    report = systematic_error(eager, subject, powers)
    assert (report.rule, report.abstained) == (None, "powers of two have no last place")
    assert not may_be_systematic(eager, subject)


@pytest.mark.parametrize(
    "truth",
    [
        grid(MANY).float(),
        grid(MANY)[None],
        torch.arange(MANY),
        torch.complex(grid(MANY), grid(MANY)),
        None,
    ],
    ids=["not wider", "another shape", "integers", "complex", "none"],
)
def test_errors_from_a_truth_of_another_kind_are_errors_from_eager(truth: Tensor | None) -> None:
    values, both = grid(MANY), alternating(MANY)
    report = systematic_error(values.float(), moved(values, 0.9 + 0.1 * both), truth, [moved(values, both)])
    assert (report.rule, report.bias) == (None, None)
    assert report.abstained == "no wider dtype: errors are measured from eager"
    assert systematic_error(values.float(), moved(values, 2.0), truth, [moved(values, both)]).rule is Rule.BIAS


def test_without_truth_and_noise_the_evidence_is_told() -> None:
    values = grid(100, torch.float64)
    report = systematic_error(values, moved(values, 2.0, torch.float64), None)
    assert (report.rule, report.n_eff) == (None, 100)
    assert report.abstained == "neither a wider dtype nor noise to measure errors with"


def test_noise_of_another_shape_or_dtype_is_left_out() -> None:
    values = grid(100, torch.float64)
    runs = [values.float(), values[:50], values[None]]
    report = systematic_error(values, moved(values, 2.0, torch.float64), None, runs)
    assert report.abstained == "neither a wider dtype nor noise to measure errors with"


def test_other_kernels_of_another_shape_or_dtype_excuse_nothing() -> None:
    values = grid(MANY)
    subject, truth = moved(values, 2.0), values + 1e-9
    others = [None, subject[None], subject.double(), subject[:50]]
    assert systematic_error(values.float(), subject, truth, (), lambda: others).rule is Rule.BIAS
    excused = systematic_error(values.float(), subject, truth, (), lambda: [*others, subject])
    assert (excused.rule, excused.is_advisory, excused.limit, excused.detail) == (None, False, None, "")


def test_an_advisory_alarm_that_another_kernel_excuses_is_none() -> None:
    values, both = grid(MANY), alternating(MANY)
    coarse, truth = moved(values, 3 * both), values + 1e-9 * both
    assert systematic_error(values.float(), coarse, truth).is_advisory
    excused = systematic_error(values.float(), coarse, truth, (), lambda: [coarse])
    assert (excused.rule, excused.is_advisory) == (None, False)


@pytest.mark.parametrize(
    ("eager", "subject"),
    [(torch.ones(64), torch.ones(65)), (torch.ones(64), torch.ones(8, 8)), (torch.arange(64), torch.arange(64))],
)
def test_two_shapes_and_integers_are_refused(eager: Tensor, subject: Tensor) -> None:
    with pytest.raises(TypeError, match="one float dtype and shape"):
        systematic_error(eager, subject, None)


def test_a_report_that_measured_nothing_has_no_figures() -> None:
    report = systematic_error(torch.ones(3), torch.ones(3), None)
    assert report == SystematicReport(abstained="fewer than 32 elements")
    assert (report.rule, report.detail, report.is_advisory, report.n_eff) == (None, "", False, 0)
    assert (report.subject, report.eager, report.limit, report.bias, report.excused) == (None, None, None, None, "")
    assert report_of(0.0).abstained == ""


# --------------------------------------------------------------------------------------------------------------- the screen


@pytest.mark.parametrize(
    ("up", "down", "is_kept"),
    [
        (0.09, 0.0, False),  # a tenth of an ULP on average
        (0.3, 0.0, True),
        (0.2, 0.2, False),  # signs that even out
        (0.3, 0.3, True),  # more than half an ULP
        (0.235, 0.165, True),  # a bias of 0.07, more than a twentieth and three standard errors of 0.005
        (0.2275, 0.1725, False),  # of 0.055
    ],
)
def test_the_screen_keeps_what_may_be_a_bias(up: float, down: float, *, is_kept: bool) -> None:
    at = torch.arange(MANY) / MANY
    ulps = (at < up).double() - ((at >= up) & (at < up + down)).double()
    values, both = grid(MANY), alternating(MANY)
    assert may_be_systematic(values.float(), moved(values, ulps)) is is_kept
    assert may_be_systematic((values * both).float(), (moved(values, ulps) * both).float()) is is_kept


def test_the_screen_keeps_a_bit_that_is_cleared_without_a_bias() -> None:
    values = 1 + 2.0**-23 * torch.arange(4096).double()
    even = 1 + 2.0**-22 * ((values - 1) * 2**22).round()
    assert (even - values).mean().abs() < 1e-3 * 2.0**-23
    assert may_be_systematic(values.float(), even.float())
