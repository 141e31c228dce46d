"""`oracle.check` and `oracle.assert_agrees` from a user's test: verdicts, not crashes; nothing of the caller's is changed."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import oracle
from oracle import checking
from oracle.checking import DisagreementError
from oracle.errors import UsageError
from oracle.verdict import Status

Backend = Callable[..., Any]


def right(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return gm.forward


def wrong(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return lambda *args: tuple(output * 1.01 if output.is_floating_point() else output for output in gm.forward(*args))


def crashes(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return lambda *args: ctypes.string_at(0)


def hangs(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    time.sleep(600)
    return gm.forward


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("isolate", [True, False])
def test_a_right_backend_agrees_and_a_wrong_one_does_not(isolate: bool) -> None:
    verdicts = oracle.check(double, torch.randn(5), subjects=[right, wrong], isolate=isolate)
    assert [verdict.status for verdict in verdicts.values()] == [Status.PASS, Status.FAIL_ACCURACY]
    assert list(verdicts) == ["right", "wrong"]


def test_a_crash_and_a_hang_are_verdicts() -> None:
    verdicts = oracle.check(double, torch.randn(5), subjects=[crashes, hangs], timeout_s=5)
    assert [verdict.status for verdict in verdicts.values()] == [Status.CRASH, Status.TIMEOUT]
    assert "signal 11" in verdicts["crashes"].symptom


def test_assert_agrees_says_where_and_by_how_much() -> None:
    oracle.assert_agrees(double, torch.ones(3), subject=right)
    with pytest.raises(DisagreementError, match=r"fail_accuracy: call 0: output\[0\] is 2\.0199") as caught:
        oracle.assert_agrees(double, torch.ones(3), subject=wrong)
    assert caught.value.verdict.worst is not None


def test_inputs_and_module_are_not_touched() -> None:
    class Counting(torch.nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.zeros(()))
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen.add_(1)
            return x.add_(self.weight)

    module, x = Counting(), torch.zeros(3)
    (verdict,) = oracle.check(lambda m: m, 1, subjects=["eager"]).values()
    assert verdict.status is Status.PASS
    (verdict,) = oracle.check(module, x, subjects=["eager"], isolate=False).values()
    assert verdict.status is Status.PASS, verdict
    assert (module.calls, float(module.seen), x.sum().item(), module.weight.grad) == (0, 0.0, 0.0, None)


def test_gradients_are_compared_when_something_requires_them() -> None:
    def no_gradient(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        return lambda *args: tuple(output.detach() for output in gm.forward(*args))

    (verdict,) = oracle.check(torch.nn.Linear(3, 2), torch.randn(4, 3), subjects=[no_gradient]).values()
    assert verdict.status in (Status.FAIL_GRAD, Status.FAIL_METADATA)


def test_a_fork_after_a_backward_pass_and_threads_in_the_caller_works() -> None:
    x = torch.randn(300, 300, requires_grad=True)
    (x @ x).sum().backward()
    (verdict,) = oracle.check(lambda a: a @ a, x, subjects=[right], timeout_s=60).values()
    assert verdict.status is Status.PASS


def test_where_autograd_refuses_a_forked_process_the_subject_runs_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_refusal", lambda: {"refused": "in combination with fork-based multiprocessing"})
    ran: list[int] = []

    def here(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        ran.append(os.getpid())
        return gm.forward

    (verdict,) = oracle.check(double, torch.ones(2), subjects=[here]).values()
    assert verdict.status is Status.PASS
    assert set(ran) == {os.getpid()}


def test_aliased_and_nested_arguments_keep_their_relations() -> None:
    base = torch.zeros(4)

    def write(pair: dict[str, torch.Tensor], same: torch.Tensor) -> torch.Tensor:
        pair["half"].add_(1)
        return same.sum()

    (verdict,) = oracle.check(write, {"half": base[:2]}, base, subjects=[right]).values()
    assert verdict.status is Status.PASS
    assert base.sum() == 0


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [((3,), {}, "callable"), ((double,), {"subjects": ["inducter"]}, "inducter"), ((double,), {"calls": 0}, "calls")],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        oracle.check(*arguments, torch.ones(1), **options)


def test_comparing_nothing_is_not_agreement() -> None:
    def nothing(x: torch.Tensor) -> None:
        return None

    with pytest.raises(DisagreementError, match="pass_due_to_skip"):
        oracle.assert_agrees(nothing, torch.ones(1), subject="dynamo")
