"""A brief verdict has the status and the symptom of the whole one, and plans are cut to the calls that show a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.hygiene import snapshot
from oracle.judge.later_calls import plainer_plans, up_to
from oracle.observe.outcome import Returned
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.base import Subject
from oracle.subjects.registry import of_callable
from oracle.verdict import Status, Verdict

Backend = Callable[..., Any]
PLAN = (Call(backward=True), Call(backward=True), Call(backward=True, double_backward=True))
SOURCE = (
    "import torch\n"
    "def inputs(call): return (torch.randn(4, requires_grad=True), torch.randn(4)), {}\n"
    "def program(x, y): return (x.sin() * y).exp().cumsum(0)\n"
)


def state_of(*calls: Call, source: str = SOURCE) -> EagerState:
    program = Program(name="t", source=source, calls=calls or PLAN)
    return EagerState(make=lambda: instantiate(program))


def backend_of(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Subject:
    """A backend whose results are changed by `change(result, number of the call)`."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        done = [0]

        def run(*args: Any) -> Any:
            done[0] += 1
            return tuple(change(result, done[0] - 1) for result in gm.forward(*args))

        return run

    return of_callable(backend)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> torch.Tensor:
        return tangents[0] * 1.01


class RefusesTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.01

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no double backward here")
        return tangents[0]


def later(result: torch.Tensor, call: int) -> torch.Tensor:
    return result * 1.01 if call else result


WRONG = {
    "values": backend_of(lambda result, call: result * 1.01),
    "gradients": backend_of(lambda result, call: WrongGradient.apply(result)),
    "values, and double backward is refused": backend_of(lambda result, call: RefusesTwice.apply(result)),
    "later values": backend_of(later),
    "shape": backend_of(lambda result, call: result[None]),
    "flags": backend_of(lambda result, call: result.detach()),
    "nothing": backend_of(lambda result, call: result),
}


@pytest.mark.fractional
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("plan", [PLAN, PLAN[:1], (Call(), Call()), (Call(backward=True, double_backward=True),) * 2])
def test_a_brief_verdict_is_the_whole_one_without_its_list(what: str, plan: tuple[Call, ...]) -> None:
    whole, brief = (
        judge_subject(eager=state_of(*plan), subject=WRONG[what], options=CaseOptions(), is_brief=is_brief).verdict
        for is_brief in (False, True)
    )
    assert (brief.status, brief.symptom, brief.call) == (whole.status, whole.symptom, whole.call)
    assert set(brief.also) <= set(whole.also)
    assert whole.status.is_finding is (what != "nothing" and (what, len(plan)) != ("later values", 1)) or (
        what == "gradients" and not plan[0].backward
    )


def test_noise_of_a_brief_verdict_is_that_of_the_first_call_without_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[Call, ...]] = []
    made = EagerState._add_noise

    def noted(self: EagerState, *args: Any) -> None:
        plans.append(self.instance().program.calls)
        made(self, *args)

    monkeypatch.setattr(EagerState, "_add_noise", noted)
    judge_subject(eager=state_of(), subject=WRONG["values"], options=CaseOptions(), is_brief=True)
    assert plans == [(Call(),)] * 2  # quiet and loud
    for twice in (PLAN, PLAN[2:]):
        plans.clear()
        subject = WRONG["values, and double backward is refused"]
        judge_subject(eager=state_of(*twice), subject=subject, options=CaseOptions(), is_brief=True)
        assert plans == [(Call(),)] * 2
    plans.clear()
    judge_subject(eager=state_of(), subject=WRONG["gradients"], options=CaseOptions(), is_brief=True)
    assert plans == [PLAN[:1]] * 2


def test_a_verdict_lists_as_many_symptoms_as_asked() -> None:
    source = SOURCE.replace("return (x.sin() * y)", "return tuple(x * i + y for i in range(30)), (x.sin() * y)")
    few, all_of_them = (
        judge_subject(
            eager=state_of(Call(), source=source), subject=WRONG["values"], options=CaseOptions(), most_also=most
        ).verdict.also
        for most in (20, 100)
    )
    assert (len(few), few[-1], len(all_of_them)) == (21, "... and 10 more", 30)
    assert few[:20] == all_of_them[:20]


def test_a_run_is_cut_to_what_a_shorter_plan_shows() -> None:
    long, short = state_of(), state_of(Call())
    for state in (long, short):
        state.run(lambda stage: None, snapshot())
    assert isinstance(long.first, Returned)
    assert isinstance(short.first, Returned)
    cut = up_to(long.first, (Call(),))
    assert isinstance(cut, Returned)
    (one,), (other,) = cut.calls, short.first.calls
    assert [leaf.path for leaf in one.outputs] == [leaf.path for leaf in other.outputs]
    assert torch.equal(one.outputs[0].value, other.outputs[0].value)
    assert one.gradients == other.gradients == ()
    once = (*PLAN[:2], replace(PLAN[2], double_backward=False))
    assert [leaf.path for call in long.first.calls for leaf in call.gradients][-1] == "second grad of args[0]"
    cut = up_to(long.first, once)
    assert isinstance(cut, Returned)
    assert [leaf.path for call in cut.calls for leaf in call.gradients] == ["grad of args[0]"] * 3


FORWARD, BACKWARD, TWICE = Call(), Call(backward=True), Call(backward=True, double_backward=True)


@pytest.mark.parametrize(
    ("calls", "status", "symptom", "call", "plans"),
    [
        (PLAN, Status.FAIL_ACCURACY, "call 0: output is 1, but should be 2", 0, [(FORWARD,), (BACKWARD,)]),
        (PLAN, Status.FAIL_GRAD, "call 0: grad of args[0] is 1, but should be 2", 0, [(BACKWARD,)]),
        ((TWICE, TWICE), Status.FAIL_GRAD, "call 0: grad of x is 1, but should be 2", 0, [(BACKWARD,), (TWICE,)]),
        ((TWICE, TWICE), Status.FAIL_GRAD, "call 0: second grad of x is 1, but should be 2", 0, [(TWICE,)]),
        (PLAN, Status.FAIL_GUARD, "call 1: output is 1, but should be 2", 1, [(BACKWARD, FORWARD), PLAN[:2]]),
        ((FORWARD,), Status.FAIL_ACCURACY, "call 0: output is 1, but should be 2", 0, []),
        (PLAN, Status.FAIL_TO_RUN, "call 0: outcome is TypeError in call (a), but should be a return", 0, []),
        (PLAN, Status.PASS, "", None, []),
    ],
)
def test_plans_without_what_a_difference_does_not_need(
    calls: tuple[Call, ...], status: Status, symptom: str, call: int | None, plans: list[tuple[Call, ...]]
) -> None:
    assert plainer_plans(calls, Verdict(status=status, symptom=symptom, call=call)) == plans
