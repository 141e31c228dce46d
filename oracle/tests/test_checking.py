"""`oracle.check` and `oracle.assert_agrees` from a user's test: verdicts, not crashes; nothing of the caller's is changed."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._subclasses.fake_tensor import FakeTensorMode

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


def _named_like_a_built_in(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return gm.forward


_named_like_a_built_in.__module__, _named_like_a_built_in.__qualname__ = "refimpl", "make_fx"
ONE = torch.ones(1)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("isolate", [True, False])
def test_a_right_backend_agrees_and_a_wrong_one_does_not(isolate: bool) -> None:
    verdicts = oracle.check(double, torch.randn(5), subjects=[right, wrong], isolate=isolate)
    assert [verdict.status for verdict in verdicts.values()] == [Status.PASS, Status.FAIL_ACCURACY]
    assert list(verdicts) == [f"{__name__}.right", f"{__name__}.wrong"]


def test_a_crash_and_a_hang_are_verdicts() -> None:
    verdicts = oracle.check(double, torch.randn(5), subjects=[crashes, hangs], timeout_s=5)
    assert [verdict.status for verdict in verdicts.values()] == [Status.CRASH, Status.TIMEOUT]
    assert "signal 11" in verdicts[f"{__name__}.crashes"].symptom


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


def test_inductor_compiles_in_a_fork_of_a_process_in_which_it_has_compiled() -> None:
    def compiles_in_threads(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        found: Any = AsyncCompile.submit(list)
        assert (found.result() if hasattr(found, "result") else found) == []
        return gm.forward

    with inductor_config.patch(compile_threads=2):
        AsyncCompile.pool().submit(
            list
        ).result()  # from here on the pool has an idle thread, which a fork does not have
        (verdict,) = oracle.check(double, torch.ones(2), subjects=[compiles_in_threads], timeout_s=10).values()
    AsyncCompile.pool.cache_clear()
    assert verdict.status is Status.PASS


def test_where_autograd_refuses_a_forked_process_the_subject_runs_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checking, "autograd_refusal", lambda: {"refused": "in combination with fork-based multiprocessing"}
    )
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


class BackendClass:
    def __init__(self, *, is_right: bool) -> None:
        self.inner = right if is_right else wrong

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        return self.inner(gm, example_inputs)

    def method(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        return self.inner(gm, example_inputs)


def _sum_of(backend: Backend, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return backend(gm, example_inputs)


def _made_twice(backend: Backend) -> Backend:
    return lambda gm, example_inputs: backend(gm, example_inputs)


# A right and a wrong backend that a name alone does not tell apart.
PAIRS: dict[str, tuple[Backend, Backend, str]] = {
    "aot_autograd": (aot_autograd(fw_compiler=right), aot_autograd(fw_compiler=wrong), "AotAutograd"),
    "partials": (functools.partial(_sum_of, right), functools.partial(_sum_of, wrong), "test_checking._sum_of"),
    "instances": (BackendClass(is_right=True), BackendClass(is_right=False), "test_checking.BackendClass"),
    "methods": (
        BackendClass(is_right=True).method, BackendClass(is_right=False).method, "test_checking.BackendClass.method"
    ),
    "closures": (_made_twice(right), _made_twice(wrong), "_made_twice.<locals>.<lambda>"),
    "lambdas": (lambda gm, inputs: right(gm, inputs), lambda gm, inputs: wrong(gm, inputs), "test_checking.<lambda>"),
}  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("kind", PAIRS)
def test_backends_of_one_name_have_a_verdict_each(kind: str, order: int) -> None:
    *pair, name = PAIRS[kind]
    verdicts = oracle.check(double, torch.ones(3), subjects=pair[::order], calls=1, isolate=False)
    assert [verdict.status for verdict in verdicts.values()] == [Status.PASS, Status.FAIL_ACCURACY][::order]
    first, second = verdicts
    assert first.endswith(name)
    assert second == f"{first}#2"


def test_a_backend_given_twice_has_two_verdicts() -> None:
    verdicts = oracle.check(double, torch.ones(3), subjects=[wrong, right, wrong, wrong], calls=1, isolate=False)
    assert {name.rpartition(".")[2]: verdict.status for name, verdict in verdicts.items()} == {
        "wrong": Status.FAIL_ACCURACY,
        "right": Status.PASS,
        "wrong#2": Status.FAIL_ACCURACY,
        "wrong#3": Status.FAIL_ACCURACY,
    }


@pytest.mark.parametrize("subject", ["eager", right])
def test_one_subject_needs_no_list(subject: str | Backend) -> None:
    verdicts = oracle.check(double, torch.ones(3), subjects=subject, calls=1, isolate=False)
    assert {name.rpartition(".")[2]: verdict.status for name, verdict in verdicts.items()} == {
        subject if isinstance(subject, str) else "right": Status.PASS
    }


@pytest.mark.parametrize(
    ("subjects", "words"),
    [
        (["dynamo", "aot_eager", "dynamo"], ["'dynamo' 2 times"]),
        (["dynamo", " dynamo "], ["'dynamo' 2 times"]),
        (
            ["inductor[dynamic=true,fullgraph=false]", "inductor[fullgraph=false,dynamic=true]"],
            ["dynamic=true,fullgraph=false", "fullgraph=false,dynamic=true", "the same"],
        ),
        (["refimpl.make_fx", _named_like_a_built_in], ["'refimpl.make_fx' 2 times"]),
        ("dynamo,aot_eager", ["subjects=['dynamo', 'aot_eager']"]),
        ([], ["no subjects", "inductor"]),
        (None, ["NoneType"]),
        ([None], ["NoneType"]),
        (["dynamo", 3], ["int", "3"]),
        ([["dynamo"]], ["list"]),
    ],
)
def test_subjects_that_are_none_or_not_distinct_are_refused(subjects: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        oracle.check(double, torch.ones(1), subjects=subjects)
    for word in words:
        assert word in str(caught.value)


def takes_a_function(fn: Backend) -> Backend:
    return fn


def returns_nothing(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> None:
    return None


class Locked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((3, ONE), {}, "fn of type int"),
        ((torch.nn.Linear, 3, 4), {}, "the class Linear"),
        ((torch.compile(double), ONE), {}, "torch.compile has compiled"),
        ((torch.compile(torch.nn.Linear(1, 1)), ONE), {}, "torch.compile has compiled"),
        ((double,), {}, "0 inputs for double.*missing a required argument: 'x'"),
        ((double, ONE, ONE), {}, "2 inputs for double.*too many"),
        ((torch.nn.Linear(1, 1), ONE, ONE), {}, "2 inputs for Linear.*too many"),
        ((double, ONE), {"kwargs": {"scale": 2}}, "'scale'"),
        ((double, ONE.to("meta")), {}, "an input that is on the meta device"),
        ((double, FakeTensorMode().from_tensor(ONE)), {}, "an input that is a fake tensor"),
        ((torch.nn.Linear(1, 1, device="meta"), ONE), {}, "a parameter that is on the meta device"),
        ((Locked(), ONE), {}, "module Locked cannot be copied"),
        ((double, ONE), {"subjects": ["inducter"]}, "inducter"),
        ((double, ONE), {"subjects": takes_a_function}, r"test_checking.takes_a_function' takes \(fn"),
        ((double, ONE), {"subjects": torch.compile}, "a whole compiler.*is named compile:"),
        ((double, ONE), {"subjects": returns_nothing}, "test_checking.returns_nothing' returned None"),
        ((double, ONE), {"calls": 0}, "calls=0"),
        ((double, ONE), {"calls": "2"}, "calls='2'"),
        ((double, ONE), {"seed": "a"}, "seed='a'"),
        ((double, ONE), {"kwargs": [1]}, "kwargs="),
        ((double, ONE), {"backward": "yes"}, "backward='yes'"),
        ((double, ONE), {"timeout_s": -1}, "timeout_s=-1"),
    ],
)
@pytest.mark.parametrize("isolate", [True, False])
def test_bad_arguments_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], word: str, isolate: bool
) -> None:
    with pytest.raises(UsageError, match=f"(?s){word}"):
        oracle.check(*arguments, isolate=isolate, **{"subjects": "eager", **options})


def test_a_module_whose_hook_makes_its_arguments_is_judged() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_forward_pre_hook(lambda module, args: (args[0] + args[1],))
    (verdict,) = oracle.check(module, torch.ones(2), torch.ones(2), subjects=right).values()
    assert verdict.status is Status.PASS


def test_assert_agrees_takes_one_subject() -> None:
    with pytest.raises(UsageError, match="subject="):
        oracle.assert_agrees(double, ONE, subjects=["dynamo"])
    with pytest.raises(UsageError, match="list"):
        oracle.assert_agrees(double, ONE, subject=["dynamo"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="subjcts"):
        oracle.assert_agrees(double, ONE, subjcts=["dynamo"])


def test_comparing_nothing_is_not_agreement() -> None:
    def nothing(x: torch.Tensor) -> None:
        return None

    with pytest.raises(DisagreementError, match="pass_due_to_skip"):
        oracle.assert_agrees(nothing, torch.ones(1), subject="dynamo")
