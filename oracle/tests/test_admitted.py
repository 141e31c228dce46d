"""How far each witness of floats goes: beside every answer that it just admits, one that it just refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.judge.elements import widen
from oracle.judge.tolerance import TABLE
from oracle.judge.values import GivenRuns, compare_values
from oracle.judge.witnesses import (
    Around,
    Beyond,
    Fp64,
    LoudNoise,
    Noise,
    OtherKernel,
    Question,
    Single,
    TypicalError,
    Whole,
    Witness,
    holds_integers,
)

NAN, INF = math.nan, math.inf
ROW = TABLE[torch.float32]
EPS, TINY = ROW.eps, ROW.tiny


def asked(eager: Sequence[Any], truth: Sequence[Any] | None = None, dtype: torch.dtype = torch.float32) -> Question:
    """All elements of a tensor with these numbers."""
    flat, row = torch.tensor(eager, dtype=dtype), TABLE[dtype]
    wide = None if truth is None else torch.tensor(truth, dtype=torch.float64)
    whole = Whole(eager=flat, row=row, atol=row.atol, truth=wide)
    return Question(at=torch.arange(len(eager)), eager=widen(flat), whole=whole)


def held(witness: Witness, question: Question, answers: Sequence[Any]) -> list[bool]:
    """For each element, whether the witness admits the answer."""
    dtype = torch.complex128 if question.eager.is_complex() else torch.float64
    return witness.admitted(question).holds(torch.tensor(answers, dtype=dtype)).tolist()


def runs_of(runs: Sequence[Sequence[Any]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.tensor(run, dtype=dtype) for run in runs]


def noise(*runs: Sequence[Any], dtype: torch.dtype = torch.float32) -> Noise:
    return Noise(TABLE[dtype], runs_of(runs, dtype), TABLE[dtype].k, lends=True)


def loud_noise(*runs: Sequence[Any]) -> LoudNoise:
    return LoudNoise(ROW, runs_of(runs), 1.0, lends=False)


# ------------------------------------------------------------------------------------------------------- sets of answers


def test_an_infinity_lies_within_no_distance() -> None:
    everything = Around(center=torch.ones(3).double(), radius=torch.full((3,), INF).double())
    assert everything.holds(torch.tensor([1e300, INF, NAN], dtype=torch.float64)).tolist() == [True, False, False]


def test_a_single_number_is_no_other_unless_told() -> None:
    value, where = torch.full((2,), 5.0, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    near = value + torch.tensor([0.0, 1e-6], dtype=torch.float64)
    assert Single(value=value, where=where).holds(near).tolist() == [True, False]
    assert Single(value=value, where=where, atol=1e-5).holds(near).tolist() == [True, True]
    assert Single(value=value, where=where, rtol=1e-6).holds(near).tolist() == [True, True]
    assert Single(value=value, where=~where, atol=1e-5).holds(near).tolist() == [False, False]


def test_beyond_a_number_lies_every_number_towards_one_infinity() -> None:
    start, where = torch.full((4,), -2.0, dtype=torch.float64), torch.ones(4, dtype=torch.bool)
    numbers = torch.tensor([-3.0, -1.0, INF, NAN], dtype=torch.float64)
    assert Beyond(start=start, sign=1.0, where=where).holds(numbers).tolist() == [False, True, False, False]
    assert Beyond(start=start, sign=-1.0, where=where).holds(numbers).tolist() == [True, False, False, False]
    assert not Beyond(start=start, sign=1.0, where=~where).holds(numbers).any()


# ------------------------------------------------------------------------------------------------- what eager is entitled to


@pytest.mark.parametrize(
    ("eager", "truth", "entitled"),
    [
        (-4.0, None, 4 * EPS),
        (INF, None, 0.0),
        (-4.0, -4.5, 0.5),
        (-4.0, -4.0, 4 * EPS),
        (-4.0, -INF, 4 * EPS),
        (-4.0, NAN, 4 * EPS),
        (INF, -2.0, 2 * EPS),
        (NAN, -2.0, 2 * EPS),
        (INF, INF, 0.0),
    ],
)
def test_eager_is_entitled_to_its_error_or_to_a_rounding(eager: float, truth: float | None, entitled: float) -> None:
    question = asked([eager], None if truth is None else [truth])
    assert question.entitled.tolist() == [entitled]


# --------------------------------------------------------------------------------------------------------------------- fp64


@pytest.mark.parametrize(
    ("eager", "truth", "answer", "is_held"),
    [
        (1.0, 1.25, 1.25 + 7.9 * 0.25, True),
        (1.0, 1.25, 1.25 - 7.9 * 0.25, True),
        (1.0, 1.25, 1.25 + 8.1 * 0.25, False),
        (-4.0, -4.0, -4.0 - 4 * 7.9 * EPS, True),
        (-4.0, -4.0, -4.0 - 4 * 8.1 * EPS, False),
        (0.0, 3 * TINY, (3 + 24 + 15) * TINY, True),
        (0.0, 3 * TINY, (3 + 24 + 17) * TINY, False),
        (1.0, INF, INF, True),
        (1.0, INF, -INF, False),
        (1.0, INF, NAN, False),
        (1.0, 1e39, INF, True),  # beyond the range of float32
        (1.0, NAN, NAN, True),
        (1.0, NAN, INF, False),
        (INF, 2.0, -INF, True),  # an overflow on the way
        (INF, 2.0, NAN, True),
        (INF, 1e39, NAN, False),
        (1.0, 2.0, NAN, False),
    ],
)
def test_fp64_admits_what_is_no_further_from_it_than_eager_by_eight_times(
    eager: float, truth: float, answer: float, *, is_held: bool
) -> None:
    witness = Fp64(ROW, torch.tensor([truth], dtype=torch.float64), torch.float32)
    assert held(witness, asked([eager], [truth]), [answer]) == [is_held]


@pytest.mark.parametrize(
    ("eager", "twin", "answer", "is_right"),
    [
        (1.0, 1.0 + 20 * EPS, 1.0 + 100 * EPS, True),  # further than a tolerance: it disagrees
        (1.0, 1.0 + 10 * EPS, 1.0 + 50 * EPS, False),  # it agrees, and admits nothing
        (2.0, INF, INF, False),
        (2.0, NAN, NAN, False),
        (2.0, NAN, 2.5, False),
        (INF, 7.0, NAN, True),
        (INF, 7.0, 7.0, True),
    ],
)
def test_a_run_in_eagers_own_dtype_has_an_opinion_where_it_has_another_number(
    eager: float, twin: float, answer: float, *, is_right: bool
) -> None:
    runs = GivenRuns(truth=lambda: torch.tensor([twin, 1.0]), noise=lambda: [torch.tensor([eager, 1.0])])
    assert compare_values(torch.tensor([eager, 1.0]), torch.tensor([answer, 1.0]), runs).is_right is is_right


# -------------------------------------------------------------------------------------------------------------------- noise


def test_noise_admits_eight_times_what_it_moves() -> None:
    witness, question = noise([1.0, 4.25], [1.0, 3.75]), asked([1.0, 4.0])
    assert held(witness, question, [1.0, 4.0 + 7.9 * 0.25]) == [True, True]
    assert held(witness, question, [1.0, 4.0 - 7.9 * 0.25]) == [True, True]
    assert held(witness, question, [1.0, 4.0 + 8.1 * 0.25]) == [True, False]


def test_noise_that_moves_nothing_admits_eight_roundings_or_errors_of_eager() -> None:
    still = noise([-4.0])
    assert held(still, asked([-4.0]), [-4.0 + 4 * 7.9 * EPS]) == [True]
    assert held(still, asked([-4.0]), [-4.0 + 4 * 8.1 * EPS]) == [False]
    assert held(still, asked([-4.0], [-4.5]), [-4.0 + 7.9 * 0.5]) == [True]
    assert held(still, asked([-4.0], [-4.5]), [-4.0 + 8.1 * 0.5]) == [False]
    assert held(still, asked([-4.0], [-4.5]), [-4.5 - 7.9 * 0.5]) == [True]


def test_noise_of_subnormal_numbers_has_an_absolute_tolerance() -> None:
    moving, still = noise([3 * TINY]), noise([0.0])
    for witness, question, furthest in (
        (moving, asked([0.0]), 24 + 16),
        (still, asked([0.0], [3 * TINY]), 3 + 24 + 16),
    ):
        assert held(witness, question, [(furthest - 1) * TINY]) == [True]
        assert held(witness, question, [(furthest + 1) * TINY]) == [False]


def test_an_element_that_moves_little_is_lent_sixteen_times_its_own_spread_at_most() -> None:
    """Two elements move by 1, one by 2**-10, one by nothing: the typical spread is 1."""
    eager = [1000.0, 1000.0, 1.0, 1.0]
    witness, question = noise([1001.0, 1001.0, 1 + 2**-10, 1.0]), asked(eager)
    lent = 8 * 16 * 2**-10
    assert held(witness, question, [1007.9, 992.1, 1 + 0.99 * lent, 1.0]) == [True] * 4
    assert held(witness, question, [1008.1, 991.9, 1 + 1.01 * lent, 1.0 + 1e-5]) == [False] * 4
    loud = loud_noise([1001.0, 1001.0, 1 + 2**-10, 1.0])
    assert held(loud, question, [1001.0, 999.0, 1 + 2**-10, 1.0]) == [True, True, True, False]
    assert held(loud, question, [1001.1, 998.9, 1 + 1.01 * 2**-10, 1.0]) == [False] * 4


def test_the_typical_spread_is_that_of_elements_that_move_and_are_always_finite() -> None:
    eager = [1000.0, 1.0, 1.0, 1.0, 1e9, 1e9, 1e9]
    witness = noise([1000.125, 1 + 2**-4, 1.0, 1.0, 2e9, 2e9, 2e9], [1000.0, 1 - 2**-4, 1.0, 1.0, NAN, NAN, INF])
    admitted = witness.admitted(asked(eager))
    radius = admitted.radius
    assert radius is not None
    assert radius[:2].tolist() == [8 * 0.125, 8 * 2**-4]


def test_loud_noise_admits_nothing_where_it_moves_nothing() -> None:
    witness = loud_noise([1.0, 3.0])
    assert held(witness, asked([1.0, 2.0], [5.0, 9.0]), [5.0, 9.5]) == [False, True]
    assert held(witness, asked([1.0, 2.0], [5.0, 9.0]), [1.0 + 2 * EPS, 3.5]) == [False, False]


# ------------------------------------------------------------------------------------- noise that gives numbers and no numbers


@pytest.mark.parametrize(
    ("eager", "runs", "right", "wrong"),
    [
        (1.0, [NAN, 1.125, 0.875, NAN], [1.99, 0.01, NAN, INF, -INF], [2.01, -0.01]),
        (NAN, [1.0, 1.125, 0.875, NAN], [1.99, 0.01, INF], [2.01, -0.01]),
        (NAN, [-1.0, NAN, NAN, NAN], [-8.9, 6.9], [-9.1, 7.1]),  # one number: it may move by as much as it is
        (-1.0, [-1.125, NAN, NAN, NAN], [-8.9, 6.9], [-9.1, 7.1]),  # and so may two
        (-1.0, [-1.125, -0.875, NAN, NAN], [-1.99, -0.01], [-2.01, 0.01]),  # three are a spread
        (1.0, [1.0625, 0.9375, INF, 1.0], [0.51, 1e30, INF, NAN], [0.49, -0.5, -1e30]),
        (1.0, [1.0625, 0.9375, -INF, 1.0], [1.49, -1e30, -INF], [1.51, 2.5, 1e30]),
        (INF, [1.0625, 0.9375, 1.0, 1.0], [0.51, 1e30], [0.49]),
        (-INF, [1.0625, 0.9375, 1.0, 1.0], [1.49, -1e30], [1.51]),
        (INF, [INF, -INF, NAN, INF], [-INF, NAN], [1.0, 0.0]),
        (NAN, [1.0, 1.125, 0.875, -INF], [1.99, -1e30, -INF], [2.01, 1e30]),
    ],
)
def test_where_some_runs_have_no_number_the_others_say_which_it_may_be(
    eager: float, runs: list[float], right: list[float], wrong: list[float]
) -> None:
    witness, question = noise(*([run, 1.0] for run in runs)), asked([eager, 1.0])
    assert [held(witness, question, [answer, 1.0])[0] for answer in right] == [True] * len(right)
    assert [held(witness, question, [answer, 1.0])[0] for answer in wrong] == [False] * len(wrong)


def test_elements_beside_one_without_a_number_are_admitted_as_ever() -> None:
    witness, question = noise([NAN, 4.25, 8.0]), asked([1.0, 4.0, 8.0])
    assert held(witness, question, [NAN, 4.0 + 7.9 * 0.25, 8.0]) == [True, True, True]
    assert held(witness, question, [NAN, 4.0 + 8.1 * 0.25, 9.0]) == [True, False, False]
    assert held(witness, question, [NAN, NAN, INF]) == [True, False, False]


def test_subnormal_numbers_beside_nan_have_an_absolute_tolerance() -> None:
    witness = noise([0.0, 1.0], [0.0, 1.0], [NAN, 1.0])
    assert held(witness, asked([0.0, 1.0]), [15 * TINY, 1.0]) == [True, True]
    assert held(witness, asked([0.0, 1.0]), [17 * TINY, 1.0]) == [False, True]
    loud = loud_noise([0.0], [0.0], [NAN])
    assert held(loud, asked([0.0]), [15 * TINY]) == [True]
    assert held(loud, asked([0.0]), [17 * TINY]) == [False]


def test_complex_numbers_where_some_runs_have_none() -> None:
    infinite = complex(INF, 0.0)
    witness = noise([1.125 + 1j], [0.875 + 1j], [infinite], dtype=torch.complex64)
    question = asked([1.0 + 1j], dtype=torch.complex64)
    assert [held(witness, question, [answer]) for answer in (1.9 + 1j, 1 + 1.9j, infinite)] == [[True]] * 3
    assert [held(witness, question, [answer]) for answer in (2.1 + 1j, 1e30 + 1j)] == [[False]] * 2


@pytest.mark.parametrize(
    ("answer", "unstable"),
    [(1.4, 0), (NAN, 1), (INF, 1), (1e-3, 0)],
)
def test_a_number_says_something_where_eager_has_none_by_chance(answer: float, unstable: int) -> None:
    runs = GivenRuns(noise=lambda: runs_of([[NAN, 1.0], [1.0625, 1.0], [0.9375, 1.0], [1.03125, 1.0]]))
    report = compare_values(torch.tensor([1.0, 1.0]), torch.tensor([answer, 1.0]), runs)
    assert report.unstable == (unstable if report.is_right else 0)
    assert report.is_right is (answer != 1e-3)


# ------------------------------------------------------------------------------------------------------------ other kernels


@pytest.mark.parametrize(
    ("eager", "other", "answer", "is_held"),
    [
        (1.0, 2.0, 2.0, True),
        (1.0, 2.0, 2.0 + 30 * EPS, True),
        (1.0, 2.0, 2.0 + 34 * EPS, False),
        (1.0, 1.0 + 10 * EPS, 1.0 + 24 * EPS, False),  # the kernel agrees with eager
        (0.0, 20 * TINY, 35 * TINY, True),
        (1.0, INF, INF, True),
        (1.0, INF, NAN, True),
        (1.0, INF, -INF, False),
        (NAN, INF, NAN, False),
        (1.0, NAN, INF, False),
        (INF, 1.0, NAN, False),
    ],
)
def test_another_kernel_admits_its_number_where_it_is_not_eagers(
    eager: float, other: float, answer: float, *, is_held: bool
) -> None:
    witness = OtherKernel(ROW, torch.tensor([other]))
    assert held(witness, asked([eager]), [answer]) == [is_held]


def test_nan_says_nothing_where_only_another_kernel_overflows() -> None:
    eager, subject = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([NAN, 2.0, 1.0])
    runs = GivenRuns(other_kernels=lambda: [torch.tensor([INF, 2.0, 1.0])])
    report = compare_values(eager, subject, runs)
    assert (report.is_right, report.unstable) == (True, 1)
    assert report.witnesses == {"close": 1, "other kernels": 2}


# ------------------------------------------------------------------------------------------------------------ typical errors


def test_without_noise_eagers_median_error_is_admitted_around_eager_and_fp64() -> None:
    """The errors are 0.25 twice, 0, infinite and NaN; the median is that of the finite ones."""
    eager, truth = [1.0, 4.0, 1.0, INF, 1.0], [1.25, 4.0, 0.75, 1.0, NAN]
    witness, question = TypicalError(ROW), asked(eager, truth)
    near, far = 7.9 * 0.25, 8.1 * 0.25
    assert held(witness, question, [1.25 + near, 4.0 + near, 0.75 - near, 1.0 + near, 1.0 + near]) == [True] * 5
    assert held(witness, question, [1.25 + far, 4.0 + far, 0.75 - far, 1.0 + far, 1.0 + far]) == [False] * 5
    assert held(witness, asked(eager), eager) == [False] * 5


def test_a_typical_error_of_zero_admits_subnormal_differences_only() -> None:
    assert held(TypicalError(ROW), asked([0.0], [0.0]), [15 * TINY]) == [True]
    assert held(TypicalError(ROW), asked([0.0], [0.0]), [17 * TINY]) == [False]
    assert held(TypicalError(ROW), asked([NAN], [0.0]), [15 * TINY]) == [True]
    assert held(TypicalError(ROW), asked([NAN], [0.0]), [17 * TINY]) == [False]


def test_what_is_typical_of_a_large_tensor_is_read_off_a_sample() -> None:
    """All elements err by 0.25, and noise moves them by 0.125; the one that is asked about moves by 2**-5."""
    eager, is_asked = torch.full((200_001,), 8.0), torch.arange(200_001) == 7
    moving = Noise(ROW, [eager + torch.where(is_asked, 2**-5, 0.125)], ROW.k, lends=True)
    for witness, truth, furthest in ((TypicalError(ROW), eager.double() + 0.25, 10.25), (moving, None, 9.0)):
        whole = Whole(eager=eager, row=ROW, atol=ROW.atol, truth=truth)
        question = Question(at=torch.tensor([7]), eager=torch.tensor([8.0]).double(), whole=whole)
        assert held(witness, question, [furthest - 0.01]) == [True]
        assert held(witness, question, [furthest + 0.01]) == [False]


def test_an_answer_that_rests_on_the_typical_error_says_nothing_where_zero_would_too() -> None:
    eager = torch.tensor([1.0, 100.0, 100.0])
    runs = GivenRuns(truth=lambda: torch.tensor([1.0, 100.5, 100.5], dtype=torch.float64))
    report = compare_values(eager, torch.tensor([2.0, 100.0, 100.0]), runs)
    assert (report.is_right, report.unstable, report.witnesses["fp64"]) == (True, 1, 1)


# ----------------------------------------------------------------------------------------------- rounding that errs as a whole


@pytest.mark.parametrize(("factor", "is_right"), [(2.5, True), (7.0, False)])
def test_errors_that_noise_admits_one_by_one_are_bounded_all_together(factor: float, *, is_right: bool) -> None:
    """Each lies within eight times what noise moves it. The root mean square of all must lie within three times."""
    sign = torch.where(torch.rand(5000, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0).double()
    eager = torch.full((5000,), 100.0)
    runs = GivenRuns(
        truth=lambda: eager.double(), noise=lambda: [(eager + 1e-2 * sign).float(), (eager - 1e-2 * sign).float()]
    )
    report = compare_values(eager, (eager + factor * 1e-2 * sign).float(), runs)
    assert report.is_right is is_right, report.detail
    if not is_right:
        assert ".rmse against fp64" in report.detail


@pytest.mark.parametrize("witness", ["loud_noise", "other_kernels"])
def test_a_jump_that_eager_takes_as_well_is_no_part_of_the_errors_all_together(witness: str) -> None:
    eager = torch.arange(1000.0)
    jumped = eager + (torch.arange(1000) % 10 == 0)
    runs = GivenRuns(truth=lambda: eager.double(), noise=lambda: [eager], **{witness: lambda: [jumped]})
    assert compare_values(eager, jumped, runs).is_right
    assert not compare_values(eager, jumped + (torch.arange(1000) == 5), runs).is_right


# -------------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("runs", "allowed"),
    [
        (GivenRuns(), 16 * EPS),
        (GivenRuns(truth=lambda: torch.tensor([1.5, 1.0, 1.0]).double()), 8 * 0.5),
        (GivenRuns(truth=lambda: torch.tensor([1.0, 1.5, 1.5]).double()), 8 * 0.5),
        (GivenRuns(noise=lambda: [torch.tensor([1.25, 1.0, 1.0])]), 8 * 0.25),
        (GivenRuns(noise=lambda: [torch.ones(3)], loud_noise=lambda: [torch.tensor([1.75, 1.0, 1.0])]), 0.75),
    ],
    ids=["nothing", "fp64", "typical error", "noise", "loud noise"],
)
def test_a_finding_says_what_the_most_lenient_witness_allowed(runs: GivenRuns, allowed: float) -> None:
    worst = compare_values(torch.ones(3), torch.tensor([9.0, 1.0, 1.0]), runs).worst
    assert worst is not None
    assert worst.allowed_error == pytest.approx(allowed)


# ---------------------------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize(
    ("seen", "answer", "is_held"),
    [
        ([3] * 14 + [900, 950], 920, True),  # 2 of 16 runs gave a number that no other gave
        ([3] * 15 + [900, 950], 920, False),
        ([3] * 15 + [900], 500, False),
        ([1, 1, 5, 5, 9, 9], 3, False),
        ([3, 4], 5, True),
        ([3, 4], 6, False),
        ([*range(100, 122)], 79, True),  # as far below as they lie apart
        ([*range(100, 122)], 78, False),
        ([*range(-121, -99)], -79, True),
        ([*range(-121, -99)], -78, False),
        ([*range(5, 27)], 0, True),  # on the same side of 0
        ([*range(5, 27)], -1, False),
        ([*range(-26, -4)], 0, True),
        ([*range(-26, -4)], 1, False),
        ([*range(-21, 1)], 1, False),
        ([*range(-21, 2)], 23, True),
        ([*range(-21, 2)], 24, False),
        ([*range(-1, 22)], -23, True),
        ([*range(-1, 22)], -24, False),
    ],
)
def test_some_integers_are_missing_where_an_eighth_of_the_runs_gives_new_ones(
    seen: list[int], answer: int, *, is_held: bool
) -> None:
    assert holds_integers(torch.tensor([answer]), torch.tensor(seen).unsqueeze(-1)).tolist() == [is_held]


def test_each_integer_is_asked_by_itself() -> None:
    seen = torch.tensor([[3, 3, 100 + at] for at in range(22)])
    assert holds_integers(torch.tensor([3, 4, 110]), seen).tolist() == [True, False, True]
    assert holds_integers(torch.tensor([3, 3, 125]), seen).tolist() == [True, True, True]


def test_of_truth_values_only_those_seen_are_admitted() -> None:
    seen = torch.tensor([[False, False], [False, True]])
    assert holds_integers(torch.tensor([True, True]), seen).tolist() == [False, True]
