"""`oracle.watch` beside real training: nothing of the training changes, a wrong backend is found, errors stay out of the loop."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oracle
from oracle import background
from oracle.checking import DisagreementError
from oracle.errors import UsageError
from oracle.hygiene import differences, rng_digest, snapshot
from oracle.saved_call import load_call
from oracle.verdict import Status
from oracle.watching import Watching

Backend = Callable[..., Any]


def right(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return gm.forward


def wrong(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    return lambda *args: tuple(
        output * 1.01 if isinstance(output, torch.Tensor) and output.is_floating_point() else output
        for output in gm.forward(*args)
    )


def killed(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    os.kill(os.getpid(), signal.SIGKILL)
    return gm.forward


def dies(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    os._exit(7)


def hangs(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    time.sleep(600)
    return gm.forward


class Net(torch.nn.Module):
    """Dropout draws random numbers, batch norm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu())) * scale


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _seeded() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def _train(model: torch.nn.Module, call: Callable[..., Any], steps: int) -> tuple[Any, ...]:
    """Everything that training computes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 6) + random.random() + np.random.rand()
        optimizer.zero_grad()
        loss = call(x, scale=0.5).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    gradients = [parameter.grad for parameter in model.parameters()]
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return losses, list(model.state_dict().values()), gradients, moments, rng_digest()


def _trained(steps: int = 7, **options: Any) -> tuple[tuple[Any, ...], Watching | None]:
    _seeded()
    model = Net()
    if not options:
        return _train(model, model, steps), None
    with oracle.watch(model, **options) as watching:
        return _train(model, model, steps), watching


def _same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same_bits, one, other))
    return one == other


@contextlib.contextmanager
def _in_step(watching: Watching) -> Iterator[Watching]:
    """Wait for the child after each sampled call, so that no call is skipped."""
    with watching:
        judge = watching._judge

        def judge_and_wait(*args: Any) -> None:
            judge(*args)
            if watching._running is not None:
                watching._collect(is_last=True)

        setattr(watching, "_judge", judge_and_wait)
        yield watching


@pytest.mark.parametrize("isolate", [True, False])
def test_training_has_the_same_bits_with_and_without(isolate: bool) -> None:
    bare, _ = _trained()
    before = snapshot()
    watched, watching = _trained(every=3, subject=right, isolate=isolate)
    assert watching is not None
    assert differences(before, snapshot()) == ()
    assert _same_bits(watched, bare)
    assert watching.calls == 7
    assert watching.verdicts[Status.PASS] >= 1, watching.summary()
    assert not watching.differences + watching.errors
    if not isolate:
        assert (watching.verdicts.total(), watching.skipped) == (3, 0)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_wrong_backend_is_found_and_the_first_call_is_saved(
    isolate: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Plain()
    given = [torch.randn(3, 4) for _ in range(3)]
    weight = model.layer.weight.detach().clone()
    with _in_step(oracle.watch(model, every=2, subject=wrong, save_to=tmp_path, isolate=isolate)) as watching:
        for x in given:
            model(x).sum().backward()
            with torch.no_grad():
                model.layer.weight.add_(1)
    assert [difference.call for difference in watching.differences] == [0, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["call-0"]
    assert watching.differences[0].verdict.status is Status.FAIL_ACCURACY
    assert f"call 0: {__name__}.wrong: fail_accuracy" in watching.summary()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    saved = load_call(tmp_path / "call-0")
    assert torch.equal(saved.args[0], given[0])
    assert torch.equal(saved.state["layer.weight"], weight)
    saved.restore(model)
    assert torch.equal(model.layer.weight, weight)
    (verdict,) = oracle.check(model, *saved.args, kwargs=saved.kwargs, subjects=[wrong], calls=1).values()
    assert verdict.symptom == watching.differences[0].verdict.symptom


def test_a_difference_is_raised_once_where_that_is_wanted() -> None:
    model, x = Plain(), torch.randn(3, 4)
    with _in_step(oracle.watch(model, every=50, subject=wrong, on_difference="raise")):
        with pytest.raises(DisagreementError, match=r"call 0: .*wrong: fail_accuracy"):
            model(x)
        model(x)
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("way", ["torch.compile", "compile in place", "function"])
def test_compiled_code_is_called_as_before_and_not_compiled_again(way: str, isolate: bool) -> None:
    torch._dynamo.reset()
    compiles: list[int] = []

    def counting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        compiles.append(os.getpid())
        return gm.forward

    module = Plain()
    model: Any = module
    if way == "torch.compile":
        model = torch.compile(module, backend=counting)
    elif way == "compile in place":
        module.compile(backend=counting)
    else:
        model = torch.compile(lambda x: torch.nn.functional.linear(x, module.layer.weight), backend=counting)
    xs = [torch.randn(3, 4) for _ in range(4)]
    expected = [model(x) for x in xs]
    with _in_step(oracle.watch(model, every=2, subject=right, isolate=isolate)) as watching:
        seen = [watching(x) if way == "function" else model(x) for x in xs]
    seen += [model(x) for x in xs]
    assert _same_bits(seen, expected * 2)
    assert len(compiles) == 1
    assert (watching.calls, watching.verdicts) == (4, {Status.PASS: 2}), watching.summary()


def test_a_wrong_backend_of_a_compiled_model_is_found_beside_the_users_own_code() -> None:
    model: Any = torch.compile(Plain(), backend="eager")
    with oracle.watch(model, every=1, subject=wrong) as watching:
        model(torch.randn(3, 4))
    assert [difference.verdict.status for difference in watching.differences] == [Status.FAIL_ACCURACY]


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("is_module", [True, False])
def test_the_compiled_code_that_a_model_has_is_judged_without_a_compile(is_module: bool, isolate: bool) -> None:
    torch._dynamo.reset()
    compiles: list[int] = []

    def wrong_from_the_second_on(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        compiles.append(os.getpid())
        return gm.forward if len(compiles) == 1 else wrong(gm, example_inputs)

    module = Plain()
    given: Any = module if is_module else lambda x: torch.nn.functional.linear(x, module.layer.weight)
    model: Any = torch.compile(given, backend=wrong_from_the_second_on)
    model(torch.randn(3, 4))
    with _in_step(oracle.watch(model, every=1, subject=None, isolate=isolate)) as watching:
        for size in (3, 3, 5):
            watching(torch.randn(size, 4))
    assert [difference.call for difference in watching.differences] == [2], watching.summary()
    assert watching.verdicts[Status.PASS] == 2
    assert set(compiles) == {os.getpid()}
    assert len(compiles) == 2
    with pytest.raises(UsageError, match="subject=None for a model of type Plain"):
        oracle.watch(module, subject=None)


def test_inside_of_a_compiled_function_the_model_is_not_seen_and_the_graph_does_not_break() -> None:
    model = Plain()
    step: Any = torch.compile(lambda x: model(x) + 1, backend="eager", fullgraph=True)
    with oracle.watch(model, every=1, subject=right) as watching:
        step(torch.randn(3, 4))
    assert watching.calls == 0
    assert "watch that function" in watching.summary()


@pytest.mark.parametrize(
    ("subject", "timeout_s", "text"),
    [(killed, 60.0, "signal 9"), (hangs, 1.0, "no end within 1 s, in stage 'subject'")],
)
def test_what_goes_wrong_in_the_child_is_told_and_no_difference(subject: Any, timeout_s: float, text: str) -> None:
    model = Plain()
    with oracle.watch(model, every=1, subject=subject, timeout_s=timeout_s) as watching:
        model(torch.randn(3, 4))
    assert text in watching.summary()
    assert not watching.differences


def test_a_crash_of_the_subject_is_a_difference() -> None:
    model = Plain()
    with oracle.watch(model, every=1, subject=dies) as watching:
        model(torch.randn(3, 4))
    assert [difference.verdict.status for difference in watching.differences] == [Status.CRASH]


@pytest.mark.parametrize("isolate", [True, False])
def test_a_model_that_cannot_be_copied_is_counted(isolate: bool) -> None:
    model, file = Plain(), open(os.devnull)  # noqa: SIM115 - something that deepcopy refuses
    setattr(model, "file", file)
    with _in_step(oracle.watch(model, every=1, subject=right, isolate=isolate)) as watching:
        for _ in range(2):
            model(torch.randn(3, 4))
    file.close()
    assert len(watching.errors) == 2
    assert "cannot be copied" in watching.summary()


def test_an_error_of_our_own_stays_out_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork(*args: Any, **kwargs: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("oracle.watching.ForkedJudgement", no_fork)
    model = Plain()
    with oracle.watch(model, every=1, subject=right) as watching:
        model(torch.randn(3, 4))
    assert watching.errors == ["call 0: OSError: no more processes"]


def test_where_autograd_refuses_a_forked_process_later_calls_are_judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "autograd_refusal", lambda: {"refused": "in a fork"})
    model = Plain()
    with _in_step(oracle.watch(model, every=1, subject=right)) as watching:
        for _ in range(2):
            model(torch.randn(3, 4))
    assert watching.verdicts == {Status.PASS: 1}


def test_a_call_is_skipped_while_another_is_judged_and_an_exception_ends_the_child() -> None:
    model, began = Plain(), time.monotonic()
    watching = oracle.watch(model, every=1, subject=hangs)
    with contextlib.suppress(KeyError), watching:
        for _ in range(3):
            model(torch.randn(3, 4))
        raise KeyError
    assert watching.skipped == 2
    assert time.monotonic() - began < 60


def test_gradients_are_judged_in_training_and_not_in_evaluation() -> None:
    def no_gradient(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        return lambda *args: tuple(output.detach().requires_grad_() for output in gm.forward(*args))

    model = Plain()
    with _in_step(oracle.watch(model, every=1, subject=no_gradient)) as watching:
        model(torch.randn(3, 4))
        model.eval()
        model(torch.randn(3, 4))
    first, *rest = [difference.verdict for difference in watching.differences]
    assert first.status is Status.FAIL_GRAD or any("grad" in text for text in (first.symptom, *first.also))
    assert not any("grad of" in text for verdict in rest for text in (verdict.symptom, *verdict.also))


def test_a_copy_of_the_model_is_not_watched() -> None:
    model = Plain()
    with oracle.watch(model, every=100, subject=right) as watching:
        average = copy.deepcopy(model)
        average(torch.randn(3, 4))
    assert watching.calls == 0


def test_strides_aliases_and_what_has_no_json_form_when_saving(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    model = Plain()
    args = ({"a": base[2:8].view(2, 3).t(), "b": (base, 2, "text", torch.float32)}, base[:4])
    background.save_call(tmp_path / "one", target=model, args=args, kwargs={}, report="r", facts={"call": 0})
    (nested, tail) = load_call(tmp_path / "one").args
    assert (nested["a"].stride(), nested["a"].storage_offset()) == ((1, 3), 2)
    tail.add_(100)
    assert nested["b"][0][0] == 100
    assert nested["b"][1:] == (2, "text", torch.float32)
    assert nested["a"][0, 0] == 102
    background.save_call(tmp_path / "two", target=model, args=(object(),), kwargs={}, report="r", facts={})
    with pytest.raises(UsageError, match="builtins"):
        load_call(tmp_path / "two")
    with pytest.raises(UsageError, match="has a saved call"):
        background.save_call(tmp_path / "two", target=model, args=(), kwargs={}, report="r", facts={})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every=0"),
        ({"on_difference": "stop"}, "on_difference='stop'"),
        ({"subject": "inductr"}, "inductr"),
        ({"timeout_s": -1}, "timeout_s=-1"),
    ],
)
def test_bad_options_are_refused_before_the_loop(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        oracle.watch(Plain(), **options)
    with pytest.raises(UsageError, match="model="):
        oracle.watch(Plain)
