"""Sizes and exceptions that hang on rounding: excused where eager itself has others under noise, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import pytest
import torch

from oracle.judge import Evidence, Runs, judge
from oracle.judge.rounded import is_rounded_exception, is_rounded_size
from oracle.observe.outcome import Outcome
from oracle.tests.outcomes import raised, returned
from oracle.tests.spoiled import verdict_on
from oracle.verdict import Status

UNIQUE = (
    "def inputs(call): return (torch.linspace(-3, 3, 300, dtype=torch.bfloat16),), {}\n"
    "def program(x): return torch.unique((x * 1.1 + 0.3) * 0.7)\n"
)


def unique_of(dtype: torch.dtype) -> torch.Tensor:
    x = torch.linspace(-3, 3, 300, dtype=torch.bfloat16).to(dtype)
    return ((x * 1.1 + 0.3) * 0.7).bfloat16().unique()


def test_how_many_numbers_are_unique_may_hang_on_rounding() -> None:
    assert unique_of(torch.float32).shape != unique_of(torch.bfloat16).shape
    verdict = verdict_on(UNIQUE, lambda output: unique_of(torch.float32))
    assert verdict.status in (Status.PASS, Status.PASS_DUE_TO_SKIP)
    assert any("gives eager other sizes" in text for text in verdict.explained)


@pytest.mark.parametrize(
    "change",
    [
        lambda output: output[:50],
        lambda output: torch.cat([output, output]),
        lambda output: unique_of(torch.float32)[None],
        lambda output: unique_of(torch.float32).float(),
        lambda output: unique_of(torch.float32).requires_grad_(),
    ],
)
def test_other_sizes_and_other_differences_stay_findings(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert verdict_on(UNIQUE, change).status is Status.FAIL_METADATA


RESIZED = (
    "def inputs(call): return (torch.arange(4.0).reshape(1, 1, 2, 2),), {}\n"
    "def program(x): return torch.unique(torch.nn.functional.interpolate(x, scale_factor=3.0, mode='bilinear'))\n"
)


@pytest.mark.parametrize("count", range(8, 15))
def test_numbers_that_rounding_alone_tells_apart_may_be_one(count: int) -> None:
    """Eager returns 18 different numbers for 10, and noise returns more. A subject that rounds each once returns 10; fewer are
    wrong.
    """
    status = verdict_on(RESIZED, lambda output: torch.linspace(0, 3, count)).status
    assert (status is Status.FAIL_METADATA) is (count < 10)


def test_where_the_program_has_float64_numbers_nobody_knows_how_many_there_are() -> None:
    source = RESIZED.replace("arange(4.0)", "arange(4.0, dtype=torch.float64)")
    assert verdict_on(source, lambda output: output[:10].clone()).status is Status.FAIL_METADATA


def test_a_size_that_no_rounding_moves_is_owed() -> None:
    source = UNIQUE.replace("(x * 1.1 + 0.3) * 0.7", "x.floor()")
    assert verdict_on(source, lambda output: output[:-1]).status is Status.FAIL_METADATA


@pytest.mark.parametrize(
    ("subject", "truth", "noise", "is_excused"),
    [
        ((3, 5), None, [[(3, 4), (3, 6)]], True),
        ((3, 5), None, [[(3, 4)], [(3, 5)]], True),  # loud noise
        ((3, 7), None, [[(3, 6)]], False),
        ((2, 5), None, [[(3, 6)]], False),
        ((3, 5), (3, 5), [[(3, 4)]], False),  # fp64 alone says nothing
        ((3, 9), (3, 9), [[(3, 5)]], True),
        ((6, 5), (6, 5), [[(3, 5)]], False),
        ((3,), None, [[(3,)]], False),
        ((3, 5), None, [[(3, 4, 1), (5,)]], False),
        ((3, 5), None, [], False),
        ((3, 5), (3,), [[(3, 6)]], True),
        ((3, 9), (3, 9, 1), [[(3, 5)]], False),
    ],
)
def test_a_size_lies_among_eagers_own(
    subject: tuple[int, ...],
    truth: tuple[int, ...] | None,
    noise: list[list[tuple[int, ...]]],
    *,
    is_excused: bool,
) -> None:
    assert is_rounded_size((3, 4), subject, truth, noise) is is_excused


MISFIT = UNIQUE.replace(
    "return torch.unique((x * 1.1 + 0.3) * 0.7)",
    f"return torch.unique((x * 1.1 + 0.3) * 0.7).add(torch.zeros({unique_of(torch.bfloat16).numel()}))",
)


def refuse(message: str) -> NoReturn:
    raise RuntimeError(message)


MESSAGE = "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension 0"


@pytest.mark.parametrize(
    ("source", "message", "status"),
    [
        (MISFIT, MESSAGE.format(197, 195), Status.PASS_DUE_TO_SKIP),
        (MISFIT, "no more registers", Status.FAIL_TO_RUN),
        (UNIQUE, MESSAGE.format(197, 195), Status.FAIL_TO_RUN),
    ],
)
def test_an_exception_that_eager_raises_as_it_rounds_is_no_finding(source: str, message: str, status: Status) -> None:
    assert verdict_on(source, lambda output: refuse(message)).status is status


@pytest.mark.parametrize(
    ("truth", "noise", "still", "is_excused"),
    [
        (raised(ValueError("of 3")), [returned(1), raised(ValueError("of 4"))], returned(1), True),
        (raised(ValueError("of 3")), [raised(ValueError("of 4"))], raised(ValueError("of 2")), False),
        (raised(ValueError("of 3")), [returned(1)], returned(1), False),
        (returned(1), [raised(ValueError("of 4"))], returned(1), False),
        (raised(TypeError("of 3")), [raised(ValueError("of 4"))], returned(1), False),
        (raised(ValueError("of 3"), call=1), [raised(ValueError("of 4"))], returned(1), False),
        (None, [raised(ValueError("of 4"))], None, False),
    ],
)
def test_an_exception_needs_fp64_and_noise_and_nothing_without(
    truth: Outcome | None, noise: Sequence[Outcome], still: Outcome | None, *, is_excused: bool
) -> None:
    seen = raised(ValueError("of 2")).exception
    assert is_rounded_exception(seen, Runs(truth=lambda: truth, noise=lambda: noise, still=lambda: still)) is is_excused


def test_memory_that_runs_out_is_no_rounding() -> None:
    seen = raised(ValueError("of 2")).exception
    runs = Runs(truth=lambda: raised(ValueError("of 3")), noise=lambda: [raised(ValueError("of 4"))])
    assert is_rounded_exception(seen, runs)
    assert not is_rounded_exception(replace(seen, is_out_of_memory=True), runs)


@pytest.mark.parametrize(("still", "status"), [(4, Status.PASS_DUE_TO_SKIP), (6, Status.FAIL_METADATA)])
def test_a_size_that_the_mode_of_the_noise_changes_is_owed(still: int, status: Status) -> None:
    eager = returned(torch.ones(4))
    runs = Runs(noise=lambda: [returned(torch.ones(6))], still=lambda: returned(torch.ones(still)))
    verdict = judge(Evidence(eager=eager, again=eager, subject=returned(torch.ones(5)), runs=runs))
    assert verdict.status is status
