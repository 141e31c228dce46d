"""What a dispatch mode does to eager excuses nobody; what rounding does, amplified or not, is excused as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.reruns.noise import RoundingNoise
from oracle.subjects.registry import of_callable
from oracle.tests.outcomes import judged, noisy, returned
from oracle.verdict import Status, Verdict

FOREACH = """
import torch
def inputs(call): return (torch.tensor([1.0, 2.0]).requires_grad_(), torch.tensor([3.0, 5.0])), {}
def program(a, factor):
    b = (a * 2).view(-1)
    torch._foreach_mul_([b], [factor])
    return b
"""
CHAOTIC = """
import torch
def inputs(call): return (torch.linspace(0.1, 0.9, 50),), {}
def program(x):
    for _ in range(60):
        x = 3.9 * x * (1 - x)
    return x
"""


def verdict_on(source: str, function: Callable[..., Any], *calls: Call) -> tuple[Verdict, EagerState]:
    """The verdict on a compiler that runs `function` in place of every graph."""
    program = Program(name="t", source=source, calls=calls or (Call(),))
    state = EagerState(make=lambda: instantiate(program))
    subject = of_callable(lambda gm, example_inputs: lambda *args: (function(*args),))
    return judge_subject(eager=state, subject=subject, options=CaseOptions()).verdict, state


class Scaled(torch.autograd.Function):
    """`a * 2 * factor`, whose gradient forgets the factor."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return a * 2 * factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * 2, None


def logistic(x: torch.Tensor) -> torch.Tensor:
    for _ in range(60):
        x = 3.9 * (x - x * x)
    return x


def test_a_gradient_that_a_mode_loses_excuses_no_subject_that_loses_it() -> None:
    verdict, state = verdict_on(FOREACH, Scaled.apply, Call(backward=True))
    assert state.truth is not None, "fp64 was asked, and is wrong in the same way"
    assert verdict.status is Status.FAIL_GRAD
    assert "grad of args[0] has 2 elements that eager has otherwise under a dispatch mode" in verdict.explained[0]
    right, _ = verdict_on(FOREACH, lambda a, factor: a * 2 * factor, Call(backward=True))
    assert right.status is Status.PASS


def test_a_state_that_noise_does_not_write_excuses_no_subject_that_does_not_write_it() -> None:
    """Batch norm writes to what its operator only reads by its schema; in inference mode the noise's copies take the write."""
    source = (
        "import torch\nmean = torch.zeros(3)\n"
        "def inputs(call): return (torch.arange(12.0).reshape(4, 3), mean), {}\n"
        "def program(x, mean): return torch.nn.functional.batch_norm(x, mean, torch.ones(3), training=True)\n"
    )
    verdict, _ = verdict_on(
        source,
        lambda x, *rest: torch.nn.functional.batch_norm(x, None, None, training=True),
        Call(grad_mode="inference"),
    )
    assert verdict.status is Status.FAIL_MUTATION, verdict.explained


def test_a_chaotic_program_is_excused_as_before() -> None:
    verdict, state = verdict_on(CHAOTIC, logistic)
    assert state.still is not None
    assert verdict.status.value.startswith("pass"), verdict.symptom
    assert not any("dispatch mode" in text for text in verdict.explained)


def test_a_chaotic_program_whose_mode_rounds_otherwise_is_excused() -> None:
    """Eager under a mode takes other kernels: another result altogether, but noise leaves none of its digits either."""
    x = torch.linspace(0.1, 0.9, 50)
    eager, still, subject = (returned(logistic(noisy(x, seed=seed))) for seed in (100, 200, 300))
    noise = [returned(logistic(noisy(x, seed=seed))) for seed in range(4)]
    loud = [returned(logistic(noisy(x, seed=seed, size=8.0))) for seed in range(4, 20)]
    verdict = judged(eager, subject, truth=still, noise=noise, loud_noise=loud, still=lambda: still)
    assert verdict.status.value.startswith("pass"), verdict.symptom
    fixed = judged(eager, subject, truth=still, noise=[still] * 4, loud_noise=[still] * 16, still=lambda: still)
    assert fixed.status is Status.FAIL_ACCURACY, "where noise moves nothing, the mode did"


@pytest.mark.parametrize(
    ("eager", "other"),
    [
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 7.0, 3.0])),
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, float("nan"), 3.0])),
        (torch.tensor([1 + 1j, 2, 3]), torch.tensor([1 + 1j, 7, 3])),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 7, 3])),
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (2.0, 7.0),
        (2, 7),
    ],
)
def test_values_of_every_kind_are_found_that_fp64_and_noise_under_the_mode_agree_with(eager: Any, other: Any) -> None:
    wide = other.double() if isinstance(other, torch.Tensor) and other.dtype is torch.float32 else other
    beside = torch.ones(2)
    expected, under_mode = returned(eager, beside), returned(other, beside)
    runs: dict[str, Any] = {"noise": [under_mode] * 4, "loud_noise": [under_mode] * 16}
    before = judged(expected, under_mode, truth=returned(wide, beside), **runs)
    assert before.status is Status.PASS, "without the still run they excuse it"
    verdict = judged(expected, under_mode, truth=returned(wide, beside), still=lambda: under_mode, **runs)
    assert verdict.status is Status.FAIL_ACCURACY
    same = judged(expected, under_mode, truth=returned(wide, beside), still=lambda: expected, **runs)
    assert same.status is Status.PASS, "a mode that changes nothing leaves truth and noise what they are"


def test_what_a_mode_rounds_otherwise_is_measured_by_the_largest_element_and_the_largest_noise() -> None:
    """A solution of linear equations: a zero is another small number where the matrix lies otherwise in memory."""
    eager, still = torch.tensor([1.0, 2.5e-7, 4.0]), torch.tensor([1.0, 0.0, 4.0])

    def verdict_on_still(still: torch.Tensor) -> Verdict:
        noise = [returned(noisy(still, seed=seed)) for seed in range(4)]
        runs: dict[str, Any] = {"truth": returned(still.double()), "noise": noise, "loud_noise": noise * 4}
        return judged(returned(eager), returned(still), still=lambda: returned(still), **runs)

    assert verdict_on_still(still).status is Status.PASS
    assert verdict_on_still(still + torch.tensor([0.0, 1e-4, 0.0])).status is Status.FAIL_ACCURACY


def test_an_integer_beside_a_jump_may_fall_to_either_side_under_the_mode() -> None:
    eager, still = returned(torch.tensor([3, 5])), returned(torch.tensor([2, 5]))
    verdict = judged(eager, still, noise=[still, still, eager, still], still=lambda: still)
    assert verdict.status is Status.PASS


def test_one_element_is_distrusted_and_the_others_are_excused() -> None:
    eager = returned(torch.tensor([1.0, 1e-6]))
    still = returned(torch.tensor([5.0, 1e-6]))
    noise = [returned(torch.tensor([5.0, 1e-6 + seed * 1e-7])) for seed in (-1, 1, 2, -2)]
    runs: dict[str, Any] = {"noise": noise, "loud_noise": noise * 4, "still": lambda: still}
    assert judged(eager, returned(torch.tensor([1.0, 1.5e-6])), **runs).status is Status.PASS
    wrong = judged(eager, returned(torch.tensor([5.0, 1.5e-6])), **runs)
    assert wrong.worst is not None
    assert wrong.worst.index == (0,)
    assert "1 of 2 elements are wrong" in wrong.symptom


def test_noise_of_size_zero_moves_nothing_and_copies_what_noise_copies() -> None:
    x = torch.tensor([[1.0, -0.0, 3e38], [float("inf"), float("nan"), 1e-45]])
    for function in (
        lambda: x * 3,
        lambda: x.sum(0),
        lambda: torch.remainder(x, 0.3),
        lambda: torch.maximum(x, -x),
        lambda: torch.nn.functional.interpolate(x[None, None], scale_factor=1.5, mode="bicubic"),
        lambda: torch.hann_window(7),
        lambda: torch.zeros(2, 3).addmm_(x[:, :2], x).t(),
        lambda: x.to(torch.complex64).exp(),
    ):
        expected = function()
        with RoundingNoise(0, scale=0.0):
            actual = function()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        assert actual.stride() == expected.stride()
        assert (
            torch.equal(torch.view_as_real(actual).signbit(), torch.view_as_real(expected).signbit())
            if (actual.is_complex())
            else torch.equal(actual.signbit(), expected.signbit())
        )
    written = torch.ones(4)
    with RoundingNoise(0, scale=0.0):  # an alias that the schema does not name is a copy, as under noise
        torch.ops.aten.unsafe_split.Tensor(written, 2)[0].neg_()
    with RoundingNoise(0):
        torch.ops.aten.unsafe_split.Tensor(written, 2)[0].neg_()
    assert written.tolist() == [1, 1, 1, 1]


def test_the_still_run_is_started_only_for_what_is_not_close() -> None:
    verdict, state = verdict_on(CHAOTIC.replace("range(60)", "range(1)"), lambda x: 3.9 * x * (1 - x))
    assert verdict.status is Status.PASS
    assert state.still is None
