"""Runs under other seeds: a right subject's run is one more of them, a wrong one's is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.judge.exchange import stands_out
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.registry import load, of_callable, resolve
from oracle.verdict import Status, Verdict

X = torch.linspace(-2, 3, 40 * 50).reshape(40, 50)[:, torch.randperm(50, generator=torch.Generator().manual_seed(5))]
Draw = Callable[[torch.Generator], Tensor]


def filled(tensor: Tensor, at: Tensor, value: float = 5.0) -> Tensor:
    return tensor.reshape(-1).index_fill(0, at, value).reshape(tensor.shape)


RIGHT: dict[str, Draw] = {
    "noise": lambda g: X + 0.01 * torch.randn(X.shape, generator=g),
    "factor": lambda g: X * torch.rand(X.shape, generator=g),
    "mask": lambda g: X * (torch.rand(X.shape, generator=g) < 0.7),
    "rare": lambda g: X * (torch.rand(X.shape, generator=g) < 1e-3),
    "one draw for all": lambda g: X + torch.rand((), generator=g),
    "heavy tails": lambda g: X / torch.rand(X.shape, generator=g),
    "one heavy draw": lambda g: X / torch.rand((), generator=g),
    "a draw for each row": lambda g: X * torch.rand(40, 1, generator=g),
    "walk": lambda g: torch.randn(X.shape, generator=g).cumsum(-1),
    "integers": lambda g: torch.randint(0, 5, X.shape, generator=g),
    "no draw": lambda g: X * 2,
    "normal numbers": lambda g: torch.randn(X.shape, generator=g),
    "numbers of few digits": lambda g: torch.rand(X.shape, generator=g).bfloat16(),
}
WRONG: dict[str, tuple[str, Callable[[Draw, torch.Generator], Tensor]]] = {
    "rows reversed": ("noise", lambda draw, g: draw(g).flip(0)),
    "negated": ("factor", lambda draw, g: -draw(g)),
    "in another order": ("factor", lambda draw, g: draw(g).reshape(-1).sort().values.reshape(X.shape)),
    "twice as far": ("noise", lambda draw, g: 2 * draw(g) - X),
    "half as far": ("noise", lambda draw, g: (draw(g) + X) / 2),
    "shifted": ("noise", lambda draw, g: draw(g) + 0.01),
    "100 elements of 5": ("noise", lambda draw, g: filled(draw(g), torch.arange(100) * 7)),
    "the same draw in each row": ("factor", lambda draw, g: X * torch.rand(50, generator=g)),
    "the same draw everywhere": ("factor", lambda draw, g: X * torch.rand((), generator=g)),
    "neighbours alike": ("factor", lambda draw, g: X * torch.rand(40, 25, generator=g).repeat_interleave(2, -1)),
    "40 elements of 4": ("normal numbers", lambda draw, g: filled(draw(g), torch.arange(40), 4.0)),
    "30 elements of one ordinary number": ("normal numbers", lambda draw, g: filled(draw(g), torch.arange(30), 0.3)),
    "a hundredth larger": ("mask", lambda draw, g: draw(g) * 1.01),
    "too many are kept": ("mask", lambda draw, g: X * (torch.rand(X.shape, generator=g) < 0.85)),
    "what is not random": ("no draw", lambda draw, g: filled(draw(g), torch.arange(30))),
}  # fmt: skip


def drawn(draw: Draw, seeds: range) -> list[Tensor]:
    return [draw(torch.Generator().manual_seed(seed)) for seed in seeds]


@pytest.mark.fractional
@pytest.mark.parametrize("runs", [16, 40])
@pytest.mark.parametrize("name", RIGHT)
def test_no_run_of_eager_stands_out(name: str, runs: int) -> None:
    for trial in range(5):
        first, second = (drawn(RIGHT[name], range(start, start + runs)) for start in (100 * trial, 100 * trial + 50))
        assert stands_out(first, {"the call before": second}) == ""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_run_stands_out(name: str) -> None:
    base, spoil = WRONG[name]
    for trial in range(3):
        runs = drawn(RIGHT[base], range(100 * trial, 100 * trial + 17))
        assert stands_out([spoil(RIGHT[base], torch.Generator().manual_seed(7000 + trial)), *runs]) != ""


def test_what_dropout_keeps_may_be_rounded_otherwise() -> None:
    """All of eager's runs keep the same numbers, bit by bit. A right subject may round every fifth otherwise."""
    eager = drawn(RIGHT["mask"], range(40))
    subject = RIGHT["mask"](torch.Generator().manual_seed(99))
    rounded = subject.clone()
    rounded.view(-1)[::5] *= 1 + 2**-21
    assert not torch.equal(rounded, subject)
    assert stands_out([rounded, *eager]) == ""


def test_a_generator_of_more_digits_than_eagers_does_not_stand_out() -> None:
    """In a format of few digits, how many numbers are the same is the generator's choice."""
    eager = drawn(RIGHT["numbers of few digits"], range(40))
    finer = torch.rand(X.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64).bfloat16()
    assert stands_out([finer, *eager]) == ""


def test_the_draws_of_the_call_before_stand_out() -> None:
    now, before = (drawn(RIGHT["factor"], range(start, start + 17)) for start in (0, 100))
    now[0] = before[0]
    assert "the call before" in stands_out(now, {"the call before": before})


def test_what_two_outputs_share_in_eager_they_share_in_the_subject() -> None:
    first = drawn(RIGHT["mask"], range(17))
    second = [output * 3.0 for output in first]  # zeros where the first has them
    assert stands_out(second, {"output[0]": first}) == ""
    second[0] = RIGHT["mask"](torch.Generator().manual_seed(99)) * 3.0
    assert "output[0]" in stands_out(second, {"output[0]": first})


@pytest.mark.parametrize("count", [3, 8])
def test_few_runs_say_nothing(count: int) -> None:
    runs = drawn(RIGHT["factor"], range(count))
    assert stands_out([-runs[0], *runs[1:]]) == ""


# ------------------------------------------------------------------------------------------- by values, where it can be had

FACTOR = (
    "def inputs(call): return (torch.arange(1.0, 901.0).reshape(30, 30),), {}\n"
    "def program(x): return torch.rand_like(x) * x\n"
)
FALLBACK = {"torch._inductor.config.fallback_random": True}


def verdict_on(change: Callable[[Tensor], Tensor], *, by_values: bool, source: str = FACTOR) -> Verdict:
    """The verdict on a subject that draws other numbers than eager, except in a run with `fallback_random`."""

    def backend(graph: Callable[..., tuple[Tensor, ...]], example_inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*args: Tensor) -> tuple[Tensor, ...]:
            if not inductor_config.fallback_random:
                torch.rand(11)
            return tuple(map(change, graph(*args)))

        return run

    given = of_callable(backend)
    given.spec = replace(given.spec, rng="own", eager_stream=FALLBACK if by_values else {})
    program = Program(name="t", source="import torch\n" + source, calls=(Call(), Call()))
    return judge_subject(
        eager=EagerState(make=lambda: instantiate(program)), subject=given, options=CaseOptions()
    ).verdict


@pytest.mark.parametrize("by_values", [True, False])
def test_a_right_subject_with_numbers_of_its_own_passes(*, by_values: bool) -> None:
    verdict = verdict_on(lambda output: output, by_values=by_values)
    assert verdict.status is Status.PASS, verdict.symptom
    words = "one by one" if by_values else "by their distribution only"
    assert any(words in text for text in verdict.explained)


@pytest.mark.parametrize(
    ("factor", "by_values", "is_found"),
    [(1.01, True, True), (1.01, False, False), (-1.0, False, True), (1.5, False, True)],
)
def test_a_small_factor_needs_the_same_numbers(factor: float, *, by_values: bool, is_found: bool) -> None:
    verdict = verdict_on(lambda output: output * factor, by_values=by_values)
    assert verdict.status.is_finding is is_found, verdict.symptom


def test_what_a_subjects_option_says_holds_for_its_stream() -> None:
    assert resolve("inductor").eager_stream == FALLBACK
    assert resolve("inductor[options.fallback_random=True]").eager_stream == {}
    assert load(resolve("aot_eager")).spec.eager_stream == {}


BESIDE = (
    "def inputs(call): return (torch.linspace(-2, 3, 900).reshape(30, 30),), {}\n"
    "def program(x): return torch.rand(30), torch.nn.functional.layer_norm(x, (30,))\n"
)


@pytest.mark.parametrize(("factor", "is_found"), [(1.0, False), (1 + 2**-23, False), (1.01, True), (-1.0, True)])
def test_what_is_not_random_beside_what_is_may_be_rounded_otherwise_and_no_more(
    factor: float, *, is_found: bool
) -> None:
    verdict = verdict_on(
        lambda output: output * factor if output.dim() == 2 else output, by_values=False, source=BESIDE
    )
    assert verdict.status.is_finding is is_found, verdict.symptom
    if is_found:
        assert "output[1]" in verdict.symptom
    else:
        assert dict(verdict.witnesses)["bits" if factor == 1 else "close"] > 0
