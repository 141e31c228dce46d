"""Values of one tensor: what a report says, which runs are asked, and what is never lost on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.judge import values
from oracle.judge.tolerance import TABLE
from oracle.judge.values import GivenRuns, compare_values

NAN, INF = math.nan, math.inf
ROW = TABLE[torch.float32]
EPS, TINY = ROW.eps, ROW.tiny


class Started:
    """Further runs that say which of them were asked for."""

    def __init__(self, **runs: Any) -> None:
        self.names: list[str] = []
        self.runs = runs

    def _give(self, name: str, nothing: Any) -> Any:
        self.names.append(name)
        return self.runs.get(name, nothing)

    def truth(self) -> Tensor | None:
        return self._give("truth", None)

    def noise(self) -> Sequence[Tensor]:
        return self._give("noise", ())

    def loud_noise(self) -> Sequence[Tensor]:
        return self._give("loud_noise", ())

    def other_kernels(self) -> Sequence[Tensor]:
        return self._give("other_kernels", ())


def wide(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------ equal tensors


@pytest.mark.parametrize(
    ("tensor", "ulp"),
    [
        (torch.tensor([1.0, NAN, -0.0]), 0.0),
        (torch.tensor([1, 2, 3]), None),
        (torch.zeros(0), 0.0),
        (torch.zeros(0, dtype=torch.int8), None),
    ],
)
def test_equal_bits_rest_on_nothing_else_and_start_no_run(tensor: Tensor, ulp: float | None) -> None:
    runs = Started()
    report = compare_values(tensor, tensor.clone(), runs)
    assert (report.is_right, report.detail, report.worst, report.unstable) == (True, "", None, 0)
    assert report.witnesses == {"bits": tensor.numel()} if tensor.numel() else not report.witnesses["bits"]
    assert (report.elements, report.max_ulp) == (tensor.numel(), ulp)
    assert report.wrong_elements.numel() == 0
    assert runs.names == []


def test_what_is_equal_and_has_other_bits_is_no_ulp_apart() -> None:
    report = compare_values(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), zero_signs=False)
    assert (report.is_right, report.max_ulp) == (True, 0.0)
    assert report.witnesses == {"close": 2}


# ---------------------------------------------------------------------------------------------------------------- integers


def test_integers_rest_on_the_runs_that_give_them() -> None:
    eager, subject = torch.zeros(7, dtype=torch.int64), torch.tensor([0, 0, 1, 2, 3, 5, 9])
    report = compare_values(
        eager,
        subject,
        GivenRuns(
            truth=lambda: torch.tensor([0, 0, 1, 0, 0, 0, 0]),
            noise=lambda: [torch.tensor([0, 0, 0, 2, 0, 0, 0]), eager],
            loud_noise=lambda: [torch.tensor([0, 0, 0, 0, 3, 0, 0])],
            other_kernels=lambda: [torch.tensor([0, 0, 0, 0, 0, 5, 0]), torch.tensor([0, 0, 0, 0, 0, 0, 9])],
        ),
    )
    assert report.is_right
    assert dict(report.witnesses) == {"bits": 2, "noise": 3, "other kernels": 2}
    assert (report.elements, report.unstable, report.max_ulp) == (7, 5, None)
    assert report.explained == (
        " differs in 3 of 7 elements that eager itself flips under rounding noise or in fp64",
        " differs in 2 of 7 elements as eager's other kernels give them",
    )


def test_integers_that_nothing_gives_are_wrong_and_the_others_are_not() -> None:
    eager, subject = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 7, 8])
    report = compare_values(eager, subject, GivenRuns(noise=lambda: [torch.tensor([0, 1, 0, 0])]))
    assert not report.is_right
    assert report.wrong_elements.tolist() == [2, 3]
    assert dict(report.witnesses) == {"bits": 1, "noise": 1}
    assert report.unstable == 1


@pytest.mark.parametrize(
    ("runs", "started"),
    [
        ({"truth": torch.tensor([3, 0])}, ["truth", "noise"]),
        ({"noise": [torch.tensor([4, 0]), torch.tensor([3, 0])]}, ["truth", "noise"]),
        ({"loud_noise": [torch.tensor([3, 0])]}, ["truth", "noise", "loud_noise"]),
        ({}, ["truth", "noise", "loud_noise", "other_kernels"]),
    ],
)
def test_no_further_run_starts_once_every_integer_is_explained(runs: dict[str, Any], started: list[str]) -> None:
    asked = Started(**runs)
    compare_values(torch.tensor([0, 0]), torch.tensor([3, 0]), asked)
    assert asked.names == started


@pytest.mark.parametrize("subject", [[0, -50, 3], [0, 50, 3], [3, -50, 0]])
def test_the_worst_integer_is_the_furthest_whatever_its_sign(subject: list[int]) -> None:
    report = compare_values(torch.zeros(3, dtype=torch.int64), torch.tensor(subject))
    assert report.worst is not None
    assert (report.worst.index, report.worst.subject_error, report.worst.allowed_error) == ((1,), 50.0, 0.0)
    assert report.detail.startswith(f"[1] is {subject[1]}, but should be 0 (2 of 3 ")


def test_the_worst_of_unsigned_integers_is_not_that_of_their_bits() -> None:
    eager, subject = torch.tensor([10, 0], dtype=torch.uint16), torch.tensor([15, 65535], dtype=torch.uint16)
    worst = compare_values(eager, subject).worst
    assert worst is not None
    assert (worst.index, worst.subject_error) == ((1,), 65535.0)


@pytest.mark.parametrize(
    ("dtype", "number"), [(torch.uint16, 60000), (torch.uint32, 2**31 + 5), (torch.uint64, 2**63 + 5)]
)
def test_unsigned_integers_are_shown_as_such(dtype: torch.dtype, number: int) -> None:
    report = compare_values(torch.zeros(1, dtype=dtype), torch.tensor([number], dtype=dtype))
    assert report.detail.startswith(f"[0] is {number}, but should be 0 ")


def test_numbers_that_are_negated_when_they_are_read_have_the_bits_of_others() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j, 0 + 0j])
    lazy = z.conj().imag
    assert lazy.is_neg()
    assert compare_values(lazy, -z.imag).witnesses == {"bits": 3}
    assert not compare_values(lazy, z.imag.clone()).is_right


@pytest.mark.parametrize(
    "run",
    [torch.tensor([3.0, 0.0]), torch.tensor([3, 0], dtype=torch.int32), torch.tensor([3]), torch.tensor([[3, 0]])],
    ids=["float", "shorter integer", "fewer elements", "more dimensions"],
)
@pytest.mark.parametrize("name", ["truth", "noise", "loud_noise", "other_kernels"])
def test_runs_of_another_shape_or_dtype_say_nothing_of_integers(name: str, run: Tensor) -> None:
    runs = Started(**{name: run if name == "truth" else [run]})
    assert not compare_values(torch.tensor([0, 0]), torch.tensor([3, 0]), runs).is_right


# ------------------------------------------------------------------------------------------------------------------ floats


def test_no_element_is_lost_where_large_tensors_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong numbers and flipped signs of zeros in the second and the last of three chunks, the first of which is equal."""
    monkeypatch.setattr(values, "CHUNK", 4)
    eager, runs = torch.ones(10), Started()
    for at in (5, 9):
        subject = eager.clone()
        subject[at] = 3.0
        report = compare_values(eager, subject, runs)
        assert report.wrong_elements.tolist() == [at]
        zeros, flipped = torch.zeros(10), torch.zeros(10)
        flipped[at] = -0.0
        exact = GivenRuns(truth=zeros.double, noise=lambda zeros=zeros: [zeros])
        assert compare_values(zeros, flipped, exact).detail.startswith(f"[{at}] is -0, but should be 0")
    one_ulp = eager.clone()
    one_ulp[1] += 2 * EPS
    one_ulp[9] += EPS
    assert compare_values(eager, one_ulp).max_ulp == 2.0


@pytest.mark.parametrize(
    ("runs", "started"),
    [
        ({"truth": wide(3.0, 1.0)}, ["truth"]),
        ({"noise": [torch.tensor([3.0, 1.0])]}, ["truth", "noise"]),
        (
            {"noise": [torch.ones(2)], "loud_noise": [torch.tensor([3.0, 1.0])]},
            ["truth", "noise", "loud_noise"],
        ),
        ({}, ["truth", "noise", "loud_noise", "other_kernels"]),
    ],
)
def test_the_dearer_runs_start_only_for_floats_that_the_cheaper_ones_leave(
    runs: dict[str, Any], started: list[str]
) -> None:
    asked = Started(**runs)
    compare_values(torch.ones(2), torch.tensor([3.0, 1.0]), asked)
    assert asked.names[: len(started)] == started
    assert set(asked.names[len(started) :]) <= {"noise"}  # once more, for the root mean square


def test_floats_that_are_close_start_no_run() -> None:
    asked = Started()
    assert compare_values(torch.ones(2), torch.tensor([1 + 15 * EPS, 1.0]), asked).is_right
    assert asked.names == []


def test_each_run_of_another_kernel_counts_what_rests_on_it() -> None:
    others = [torch.tensor([5.0, 1.0, 1.0]), torch.tensor([1.0, 6.0, 1.0])]
    report = compare_values(torch.ones(3), torch.tensor([5.0, 6.0, 1.0]), GivenRuns(other_kernels=lambda: others))
    assert report.is_right
    assert dict(report.witnesses) == {"close": 1, "other kernels": 2}


def test_loud_noise_is_not_multiplied() -> None:
    runs = GivenRuns(noise=lambda: [torch.ones(2)], loud_noise=lambda: [torch.tensor([1.5, 1.0])])
    assert compare_values(torch.ones(2), torch.tensor([1.49, 1.0]), runs).is_right
    assert not compare_values(torch.ones(2), torch.tensor([1.51, 1.0]), runs).is_right


def test_loud_noise_lends_nothing() -> None:
    """It moves two elements by 0.5 and the third by 0.01: the third gets no room from the others."""
    moved = torch.tensor([1.5, 1.5, 1.01])
    runs = GivenRuns(noise=lambda: [torch.ones(3)], loud_noise=lambda: [moved])
    assert not compare_values(torch.ones(3), torch.tensor([1.0, 1.0, 1.1]), runs).is_right


def test_quiet_noise_lends() -> None:
    moved = torch.tensor([1.5, 1.5, 1.01])
    assert compare_values(torch.ones(3), torch.tensor([1.0, 1.0, 2.2]), GivenRuns(noise=lambda: [moved])).is_right


UNUSABLE: dict[str, Callable[[], Tensor]] = {
    "another shape": lambda: wide(3.0),
    "more dimensions": lambda: wide(3.0, 1.0)[None],
    "integers": lambda: torch.tensor([3, 1]),
    "complex": lambda: torch.tensor([3 + 0j, 1 + 0j], dtype=torch.complex128),
    "a narrower dtype": lambda: torch.tensor([3.0, 1.0], dtype=torch.float16),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_truth_of_another_kind_says_nothing(name: str) -> None:
    runs = GivenRuns(truth=UNUSABLE[name])
    report = compare_values(torch.ones(2), torch.tensor([3.0, 1.0]), runs)
    assert not report.is_right
    assert report.worst is not None
    assert report.worst.truth is None


@pytest.mark.parametrize("name", ["noise", "loud_noise", "other_kernels"])
@pytest.mark.parametrize("run", [wide(3.0, 1.0), torch.tensor([3.0]), torch.tensor([[3.0, 1.0]]), torch.tensor([3, 1])])
def test_runs_of_another_shape_or_dtype_say_nothing_of_floats(name: str, run: Tensor) -> None:
    runs = Started(**{name: [run]})
    assert not compare_values(torch.ones(2), torch.tensor([3.0, 1.0]), runs).is_right


# --------------------------------------------------------------------------------------------------------- signs of zeros


def signed(eager: float, subject: float, truth: float, *runs: Sequence[float], beside: float = 1.0) -> Any:
    """A number beside another one, in float32. `runs` under noise give both."""
    given = GivenRuns(truth=lambda: wide(truth, beside), noise=lambda: [torch.tensor([*run]) for run in runs])
    return compare_values(torch.tensor([eager, beside]), torch.tensor([subject, beside]), given)


def test_a_zero_of_the_other_sign_is_wrong_where_every_run_agrees_with_eager() -> None:
    report = signed(0.0, -0.0, 0.0, [0.0, 1.0], [0.0, 1.0])
    assert not report.is_right
    assert report.detail.startswith("[0] is -0, but should be 0 (the sign of zero")
    assert report.detail.endswith("1 of 2 elements)")
    assert report.worst.index == (0,)
    assert (report.worst.eager, report.worst.subject, report.worst.truth, report.worst.ulp) == ("0", "-0", "0", 0.0)
    assert not signed(-0.0, 0.0, -0.0, [-0.0, 1.0]).is_right


@pytest.mark.parametrize(("beside", "run"), [(1e-9, -1e-9), (1e-9, -0.0), (0.0, -1e-9), (0.0, 0.0), (1.0, -1.0)])
def test_only_a_zero_that_is_another_zero_in_a_run_opens_the_signs_of_all(beside: float, run: float) -> None:
    assert not signed(0.0, -0.0, 0.0, [0.0, run], beside=beside).is_right


@pytest.mark.parametrize(
    ("truth", "runs", "beside"),
    [
        (-0.0, [[0.0, 1.0]], 1.0),  # fp64 has the other sign
        (1e-9, [[0.0, 1.0]], 1.0),  # or no zero
        (0.0, [[0.0, 1.0], [-0.0, 1.0]], 1.0),  # one run of noise has the other sign
        (0.0, [[0.0, 1.0], [1e-9, 1.0]], 1.0),
        (0.0, [[0.0, -0.0]], 0.0),  # another zero of the tensor has the other sign in a run
        (0.0, [], 1.0),  # nothing was run under noise
    ],
)
def test_a_zero_of_the_other_sign_is_right_where_one_run_disagrees(
    truth: float, runs: list[list[float]], beside: float
) -> None:
    report = signed(0.0, -0.0, truth, *runs, beside=beside)
    assert report.is_right
    assert report.explained == (" has 1 of 2 zeros of the other sign, which eager does not define",)


def test_a_zero_of_the_other_sign_is_right_without_fp64() -> None:
    runs = GivenRuns(noise=lambda: [torch.zeros(1)])
    assert compare_values(torch.zeros(1), -torch.zeros(1), runs).is_right
    others: list[Tensor] = [wide(0.0, 0.0), torch.zeros(1, dtype=torch.complex128)]
    for truth in others:
        with_other = GivenRuns(truth=lambda truth=truth: truth, noise=lambda: [torch.zeros(1)])
        assert compare_values(torch.zeros(1), -torch.zeros(1), with_other).is_right


@pytest.mark.parametrize(("eager", "subject"), [(0.0, -TINY), (-TINY, 0.0), (-TINY, TINY), (TINY, -TINY)])
def test_a_subnormal_number_of_the_other_sign_is_no_zero(eager: float, subject: float) -> None:
    report = signed(eager, subject, math.copysign(0.0, eager), [math.copysign(0.0, eager), 1.0])
    assert report.is_right
    assert report.explained == ()


def test_a_wrong_number_is_told_before_a_wrong_sign() -> None:
    exact = torch.tensor([0.0, 1.0])
    runs = GivenRuns(truth=exact.double, noise=lambda: [exact])
    assert compare_values(exact, torch.tensor([-0.0, 3.0]), runs).detail.startswith("[1] is 3, but should be 1")


def test_signs_of_several_zeros_are_asked_one_by_one() -> None:
    eager, subject = torch.tensor([0.0, 0.0, 0.0, 5.0]), torch.tensor([-0.0, -0.0, 0.0, 5.0])
    runs = GivenRuns(truth=lambda: wide(1e-9, 0.0, 0.0, 5.0), noise=lambda: [eager])
    report = compare_values(eager, subject, runs)
    assert report.detail.startswith("[1] is -0, but should be 0")
    assert "1 of 4 elements" in report.detail
    assert compare_values(eager, subject, runs, zero_signs=False).is_right


# ------------------------------------------------------------------------------------------------------- the worst element


@pytest.mark.parametrize(
    ("subject", "index"),
    [
        ([1.001, 1.0, 103.0], 0),  # 500 times what it is allowed, the other 3 times
        ([1 + 17 * EPS, 1.0, 900.0], 2),
        ([1.001, NAN, 103.0], 1),
        ([1.001, INF, 103.0], 1),
        ([1.001, 1.0, -1000.0], 2),
    ],
)
def test_the_worst_element_is_the_furthest_beyond_what_it_is_allowed(subject: list[float], index: int) -> None:
    eager, moved = torch.tensor([1.0, 1.0, 100.0]), torch.tensor([1.0, 1.0, 100.125])
    worst = compare_values(eager, torch.tensor(subject), GivenRuns(noise=lambda: [moved])).worst
    assert worst is not None
    assert worst.index == (index,)


def test_the_worst_element_is_measured_from_fp64() -> None:
    """The second is further from eager, the first from what is right."""
    runs = GivenRuns(truth=lambda: wide(1.0, 1.1), noise=lambda: [torch.tensor([1.125, 1.125])])
    worst = compare_values(torch.ones(2), torch.tensor([3.05, 3.1]), runs).worst
    assert worst is not None
    assert worst.index == (0,)


def test_the_worst_of_dtypes_that_are_allowed_nothing_is_the_furthest() -> None:
    eager, subject = (torch.tensor(numbers).to(torch.float8_e8m0fnu) for numbers in ([1.0, 1.0], [2.0, 4.0]))
    worst = compare_values(eager, subject).worst
    assert worst is not None
    assert (worst.index, worst.allowed_error) == ((1,), 0.0)


def test_an_error_of_all_together_names_the_furthest_finite_element_and_the_bound() -> None:
    """Noise moves all by up to 0.01, the subject errs by 0.07, one element by 0.075; the first overflowed on the way."""
    sign = torch.where(torch.arange(1000) % 2 == 0, 1.0, -1.0).double()
    truth = torch.full((1000,), 100.0).double()
    eager, subject = truth.float(), (truth + 0.07 * sign).float()
    eager[0], subject[0], subject[500] = INF, -INF, 100.075
    noise = [eager.clone(), (eager + 0.01 * sign).float(), eager.clone()]
    report = compare_values(eager, subject, GivenRuns(truth=lambda: truth, noise=lambda: noise))
    assert report.detail.startswith(".rmse against fp64 is 0.07, but should be at most 0.0")
    assert report.detail.endswith(", that of noise 0.01)")
    assert report.worst is not None
    assert report.worst.index == (500,)
    assert report.worst.allowed_error == pytest.approx(3.16 * 0.01, rel=0.01)


def test_the_worst_element_is_described() -> None:
    eager, subject = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]])
    report = compare_values(eager, subject, GivenRuns(truth=lambda: wide(1.0, 2.0625)[None]))
    worst = report.worst
    assert worst is not None
    assert (worst.index, worst.eager, worst.subject, worst.truth) == ((0, 1), "2", "3", "2.0625")
    assert (worst.eager_error, worst.subject_error, worst.ulp) == (0.0625, 0.9375, 2.0**22)
    assert worst.allowed_error == 0.5
    assert report.detail == (
        "[0, 1] is 3, but should be 2 (fp64 2.0625): error 0.938, allowed 0.5; 1 of 2 elements are wrong"
    )


def test_without_fp64_the_worst_element_is_described_beside_eager() -> None:
    worst = compare_values(torch.tensor([1.0, 100.0]), torch.tensor([3.0, 100.0])).worst
    assert worst is not None
    assert (worst.truth, worst.eager_error, worst.subject_error, worst.ulp) == (None, None, 2.0, 1.5 * 2**23)


def test_what_noise_allows_beyond_all_numbers_is_no_number() -> None:
    runs = GivenRuns(noise=lambda: [wide(1e308, 1.0)])
    worst = compare_values(wide(0.0, 1.0), wide(INF, 1.0), runs).worst
    assert worst is not None
    assert worst.allowed_error is None


@pytest.mark.parametrize(("eager", "subject"), [(1.0, NAN), (INF, 1.0), (NAN, 1.0)])
def test_what_is_not_finite_has_no_distance(eager: float, subject: float) -> None:
    worst = compare_values(torch.tensor([eager, 1.0]), torch.tensor([subject, 1.0])).worst
    assert worst is not None
    assert (worst.ulp, worst.subject_error) == (None, None)
    if eager != 1.0:
        assert worst.allowed_error == ROW.atol
