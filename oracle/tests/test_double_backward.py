"""Gradients of gradients: who loses them is found, who refuses them by name is not, and eager says what has any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.program import TWICE_DIFFERENTIATED, Call, Program, default_plan
from oracle.program.build import instantiate
from oracle.subjects.base import Subject
from oracle.subjects.registry import load, of_callable, resolve
from oracle.verdict import Status, Verdict

Backend = Callable[..., Any]
PLAN = (Call(backward=True), Call(backward=True), Call(backward=True, double_backward=True))
PRODUCT = (
    "def inputs(call): return (torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)), {}\n"
    "def program(x, y): return (x.sin() * y).exp(), y * 2\n"
)


class Opaque(torch.autograd.Function):
    """Right gradients, which depend on nothing."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, run: Backend, *args: Any) -> torch.Tensor:
        ctx.run, ctx.args = run, args
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        with torch.enable_grad():
            leaves = [arg.detach().requires_grad_() for arg in ctx.args]
            found = torch.autograd.grad(ctx.run(*leaves), leaves, tangents[0].detach(), allow_unused=True)
        return None, None, *(None if gradient is None else gradient.detach() for gradient in found)


def opaque(gm: torch.fx.GraphModule, example_inputs: list[Any], wrapped: Any = Opaque) -> Backend:
    def part(number: int) -> Backend:
        return lambda *args: gm.forward(*args)[number]

    def run(*args: Any) -> Any:
        with torch.no_grad():
            results = gm.forward(*args)
        return tuple(wrapped.apply(result, part(number), *args) for number, result in enumerate(results))

    return run


def right_once(backend: Backend) -> Backend:
    """A backend whose first call has right gradients of gradients."""

    def compiled(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        first, later = iter([gm.forward]), backend(gm, example_inputs)
        return lambda *args: next(first, later)(*args)

    return compiled


def refusing(message: str) -> Backend:
    class Refusing(Opaque):
        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(message)
            return Opaque.backward(ctx, *tangents)

    return lambda gm, example_inputs: opaque(gm, example_inputs, Refusing)


def judged(subject: Subject, source: str = PRODUCT, *calls: Call) -> Verdict:
    program = Program(name="t", source="import torch\n" + source, calls=calls or PLAN)
    state = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=state, subject=subject, options=CaseOptions()).verdict


def test_a_compiler_that_silently_loses_gradients_of_gradients_is_found() -> None:
    verdict = judged(of_callable(opaque))
    assert (verdict.status, verdict.call) == (Status.FAIL_GRAD, 2), verdict  # no other call differentiates twice
    assert "second grad of args[0]" in verdict.symptom
    twice = [replace(call, double_backward=True) for call in PLAN]
    assert (
        judged(of_callable(right_once(opaque)), PRODUCT, *twice).status is Status.FAIL_GUARD
    )  # the first one is right
    assert judged(of_callable(opaque), PRODUCT, *PLAN[:2]).status is Status.PASS  # nothing else is wrong


@pytest.mark.parametrize("subject", ["eager", "dynamo", "make_fx", "refimpl.capture"])
def test_who_keeps_them_passes(subject: str) -> None:
    verdict = judged(load(resolve(subject)))
    assert (verdict.status, verdict.explained) == (Status.PASS, ())
    assert verdict.compared.tensors == 20


@pytest.mark.parametrize("subject", ["aot_eager", "aot_eager_decomp_partition", "refimpl.full"])
def test_a_refusal_by_name_passes_and_is_said_unless_they_are_promised(subject: str) -> None:
    stock = load(resolve(subject))
    verdict = judged(stock)
    assert verdict.status is Status.PASS
    assert any("double backward is refused" in text for text in verdict.explained)
    stock.spec = replace(stock.spec, double_backward=True)
    assert judged(stock).status.is_finding


def test_another_exception_there_is_a_finding_and_so_is_a_wrong_value_beside_a_refusal() -> None:
    assert judged(of_callable(refusing("double backward is not supported"))).status is Status.PASS
    verdict = judged(of_callable(refusing("index out of range")))
    assert verdict.status.is_finding
    assert "index out of range" in verdict.symptom

    def wrong_in_the_last_call(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        run, calls = refusing("double backward is not supported")(gm, example_inputs), [0]

        def counted(*args: Any) -> Any:
            calls[0] += 1
            return tuple(result * (1.01 if calls[0] == 3 else 1) for result in run(*args))

        return counted

    assert judged(of_callable(wrong_in_the_last_call)).call == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("Once.apply(x) * x", "eager raises"),
        ("(x * 0).norm()", "NaN"),
    ],
)
def test_what_eager_cannot_differentiate_twice_is_differentiated_once(body: str, why: str) -> None:
    source = (
        "class Once(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x * 2)\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        if torch.is_grad_enabled(): raise RuntimeError('once only')\n"
        "        return g * 2\n"
        "def inputs(call): return (torch.randn(4, requires_grad=True),), {}\n"
        f"def program(x): return {body}\n"
    )
    verdict = judged(load(resolve("eager")), source)
    assert verdict.status is Status.PASS
    assert any("has no double backward" in text and why in text for text in verdict.explained)


def test_gradients_that_depend_on_nothing_are_zero_whoever_says_so() -> None:
    source = "def inputs(call): return (torch.randn(4, requires_grad=True),), {}\ndef program(x): return x * 3\n"
    assert judged(of_callable(opaque), source).status is Status.PASS


def test_a_stated_share_of_default_plans_has_one_and_it_is_the_same_every_time() -> None:
    plans = [default_plan(Call(backward=True), key=f"program {number}") for number in range(1000)]
    share = sum(plan[-1].double_backward for plan in plans) / len(plans)
    assert abs(share - 1 / TWICE_DIFFERENTIATED) < 0.06
    assert plans == [default_plan(Call(backward=True), key=f"program {number}") for number in range(1000)]
    assert not any(call.double_backward for plan in plans for call in plan[:-1])
    assert not any(call.double_backward for n in range(99) for call in default_plan(Call(), key=str(n)))


def test_a_subjects_file_can_promise_them(tmp_path: Path) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text('[subjects.mine]\nkind = "aot_eager"\ndouble_backward = true\n')
    assert resolve("mine", subjects_file=file).double_backward
    assert not resolve("aot_eager").double_backward
    file.write_text('[subjects.mine]\nkind = "aot_eager"\ndouble_backward = "yes"\n')
    with pytest.raises(UsageError, match="double_backward"):
        resolve("mine", subjects_file=file)
