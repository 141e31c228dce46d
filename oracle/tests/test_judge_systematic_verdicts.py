"""Verdicts about systematic errors: each element is close, and a result or gradient that is wrong as a whole fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.judge import Evidence, Runs, judge
from oracle.observe.outcome import Leaf, Outcome, Returned
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.registry import resolve
from oracle.symptom import symptom_of
from oracle.tests.outcomes import returned
from oracle.tests.test_judge_systematic import noisy, truths, with_bits_cleared
from oracle.verdict import Status, Verdict


class Wrong:
    """A compiler that gives eager's results changed by `change`, and gradients that are eager's."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.spec = replace(resolve("eager"), name="wrong")
        self.change = change

    def reset(self) -> None: ...

    def counters(self) -> Counters:
        return Counters()

    def compile(self, request: CompileRequest) -> Callable[..., torch.Tensor]:
        return lambda *args, **kwargs: self.change(request.target(*args, **kwargs))


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * 1.01


PROGRAM = """
import torch

def program(x, y):
    return torch.softmax(x, -1) * y

def inputs(call):
    g = torch.Generator().manual_seed(7)
    make = lambda: torch.randn(32, 64, generator=g).to(torch.{dtype})
    return (make().requires_grad_({grad}), make().requires_grad_({grad})), {{}}
"""


def verdict_on(change: Callable[[torch.Tensor], torch.Tensor], dtype: str, *, backward: bool = False) -> Verdict:
    program = Program(
        name="softmax", source=PROGRAM.format(dtype=dtype, grad=backward), calls=(Call(backward=backward),)
    )
    eager = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=eager, subject=Wrong(change), options=CaseOptions()).verdict


@pytest.mark.parametrize(
    ("dtype", "change", "kind"),
    [
        ("bfloat16", lambda r: r * 1.01, "output: bias"),
        ("float16", lambda r: r * 1.003, "output: bias"),
        ("float32", lambda r: r * (1 + 1e-6), "output: bias"),
        ("float32", lambda r: with_bits_cleared(r, 4), "output: cleared bits"),
        ("float64", lambda r: with_bits_cleared(r, 4), "output: cleared bits"),
    ],
)
def test_results_wrong_as_a_whole_fail(dtype, change, kind):
    verdict = verdict_on(change, dtype)
    assert verdict.status is Status.FAIL_ACCURACY, verdict
    assert symptom_of(verdict).kind == kind


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_eager_itself_and_a_rare_last_place_pass(dtype):
    def one_in_a_hundred(result: torch.Tensor) -> torch.Tensor:
        up = torch.nextafter(result, torch.full_like(result, torch.inf))
        return torch.where(torch.arange(result.numel()).reshape(result.shape) % 100 == 0, up, result)

    assert verdict_on(lambda r: r, dtype).status is Status.PASS
    assert verdict_on(one_in_a_hundred, dtype).status is Status.PASS


def test_gradients_that_are_one_percent_too_large_fail():
    verdict = verdict_on(_ScaledGradient.apply, "bfloat16", backward=True)
    assert verdict.status is Status.FAIL_GRAD, verdict
    assert symptom_of(verdict).kind == "grad: bias"


def test_a_verdict_keeps_the_figures_that_are_added_over_a_run():
    verdict = verdict_on(lambda r: r * 1.003, "float16")
    (one,) = verdict.bias
    assert one.dtype == "float16"
    assert one.subject_mean * one.eps == pytest.approx(3e-3, rel=0.2)
    assert Verdict.from_json(verdict.to_json()) == verdict


def evidence(subject: torch.Tensor, truth: torch.Tensor) -> Evidence:
    eager = returned(truth.to(subject.dtype))
    noise = [returned(run) for run in noisy(truth, subject.dtype)]
    given = Runs(truth=lambda: returned(truth), noise=lambda: noise)
    return Evidence(eager=eager, again=eager, subject=returned(subject), runs=given)


def test_a_coarser_float32_result_passes_and_is_told():
    truth = truths()
    move = torch.rand(truth.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 8 - 4
    verdict = judge(evidence((truth * (1 + 2**-23 * move)).float(), truth))
    assert verdict.status is Status.PASS
    assert any("root mean square error" in text and text.endswith("told, and no finding") for text in verdict.explained)


def test_what_eager_has_otherwise_under_a_mode_has_no_truth():
    truth = truths()
    one = evidence((truth * 1.01).bfloat16(), truth)
    assert judge(one).status is Status.FAIL_ACCURACY
    still, noise = returned((truth * 3).bfloat16()), [returned(run) for run in noisy(truth * 3, torch.bfloat16)]
    runs = replace(one.runs, still=lambda: still, noise=lambda: noise)
    assert judge(replace(one, runs=runs)).status is Status.PASS


def test_no_further_run_of_eager_starts_for_few_and_even_differences():
    started = []
    truth = truths()
    subject = truth.bfloat16()
    subject[::50] = torch.nextafter(subject[::50], torch.zeros_like(subject[::50]))

    def run() -> Outcome:
        started.append(True)
        return returned(truth)

    eager = returned(truth.bfloat16())
    one = Evidence(eager=eager, again=eager, subject=returned(subject), runs=Runs(truth=run, noise=lambda: [run()]))
    assert judge(one).status is Status.PASS
    assert not started
    far = replace(one, subject=returned((truth * 1.01).bfloat16()))
    judge(far)
    assert started


def test_errors_on_another_device_are_told_and_are_no_finding():
    class Elsewhere(torch.Tensor):
        """Values on the CPU that say they are on a GPU, as a result that was not copied yet."""

        @property
        def device(self):  # pyright: ignore[reportIncompatibleVariableOverride]
            return torch.device("cuda:0")

    truth = truths()
    plain = evidence((truth * 1.01).bfloat16(), truth)
    assert judge(plain).status is Status.FAIL_ACCURACY

    def moved(outcome: Outcome) -> Outcome:
        assert isinstance(outcome, Returned)
        (call,) = outcome.calls
        outputs = tuple(
            Leaf(path=leaf.path, value=leaf.value.as_subclass(Elsewhere), facts=leaf.facts) for leaf in call.outputs
        )
        return replace(outcome, calls=(replace(call, outputs=outputs),))

    verdict = judge(replace(plain, eager=moved(plain.eager), again=moved(plain.again), subject=moved(plain.subject)))
    assert verdict.status is Status.PASS, verdict
    assert any("errors of one sign" in text for text in verdict.explained)
