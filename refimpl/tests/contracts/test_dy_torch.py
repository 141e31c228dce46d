"""Contracts of capture's public surface (rows DY of docs/contracts.md) that concern torch around it: tracers, optimizers,
autograd's engine, warnings, events."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

import refimpl
from refimpl.capture.compile import optimize_assert
from refimpl.capture.config import config
from refimpl.capture.entry_points.compiled_autograd import maybe_enable_compiled_autograd
from refimpl.capture.entry_points.torch_patcher import TorchPatcher
from refimpl.capture.public import metrics, timing, usage
from refimpl.capture.public.counters import counters
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left, plus_one

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor


def test_tracing_a_captured_function_by_torchscript_is_refused(backend: Backend) -> None:
    """DY-12"""
    compiled = refimpl.optimize(backend)(plus_one)
    for _ in range(2):  # with and without something that is captured already
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace a dynamo-optimized function"):
            torch.jit.trace(compiled, (torch.ones(2),))
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    inner = refimpl.disable(lambda x: x * 3)
    traced: Any = torch.jit.trace(inner, (torch.ones(2),))
    assert traced(torch.ones(2)).tolist() == [3, 3], "what is not captured can be traced"


# ------------------------------------------------------------------------------------------------------------- autograd


def step(model: torch.nn.Module, x: Tensor) -> Tensor:
    loss = model(x).sin().sum()
    loss.backward()
    return loss.detach() + 1


def twins() -> tuple[torch.nn.Module, torch.nn.Module]:
    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU(), torch.nn.Linear(4, 2)
        )

    return made(), made()


def have_equal_gradients(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)


def test_a_backward_pass_in_a_captured_call_is_compiled(backend: Backend) -> None:
    """DY-14"""
    with config.patch(compiled_autograd=True):
        compiled = refimpl.optimize(backend)(step)
    model, eager = twins()
    original, x = torch.autograd.backward, torch.rand(5, 3)
    for _ in range(3):
        x = torch.rand(5, 3)
        assert torch.equal(compiled(model, x), step(eager, x))
        assert have_equal_gradients(model, eager), "gradients add up"
    assert counters["compiled_autograd"] == {"compiles": 1}, "the same graph is not compiled again"
    assert backend.n == 3, "before the backward pass, that, and after it"
    backwards = [targets for targets in backend.targets() if "gelu_backward.default" in targets]
    assert len(backwards) == 1
    assert torch.autograd.backward is original
    without = refimpl.optimize(backend)(step)
    without(model, x)
    assert backend.n == 3, "not without the setting"


def test_compiled_autograd_needs_a_way_to_make_a_compiler(backend: Backend) -> None:
    """DY-14"""
    with config.patch(compiled_autograd=True), pytest.raises(AssertionError, match="rebuild_ctx is None"):
        optimize_assert(backend)
    made: list[Any] = []

    def rebuild() -> Any:
        made.append(refimpl.optimize(backend))
        return made[-1]

    with config.patch(compiled_autograd=True):
        optimize_assert(backend, rebuild_ctx=rebuild)
    assert len(made) == 1


def test_what_a_trace_would_get_wrong_is_left_to_the_engine() -> None:
    """DY-14, UT-54"""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            seen.append(type(gradients[0]))
            return gradients[0] * 2

    seen: list[type] = []
    w = torch.ones(2, requires_grad=True)
    with maybe_enable_compiled_autograd(True):
        doubled: Any = Doubled.apply(w)
        doubled.sum().backward()
        y = w * 3
        y.register_hook(lambda gradient: seen.append(type(gradient)))
        y.sum().backward()
        w.register_hook(lambda gradient: gradient * 10)
        (w * 1).sum().backward()
    assert seen == [Tensor, Tensor], "once each, and with data"
    assert w.grad is not None
    assert w.grad.tolist() == [15, 15]
    assert counters["compiled_autograd"]["compiles"] == 0


def test_a_second_backward_and_one_after_a_write_raise_as_they_do() -> None:
    """DY-14, UT-54"""
    w = torch.ones(2, requires_grad=True)
    with maybe_enable_compiled_autograd(True):
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        loss = (w * w).sum()
        with torch.no_grad():
            w += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [4, 4]
    with maybe_enable_compiled_autograd(False):
        (w * w).sum().backward()
    assert counters["compiled_autograd"]["compiles"] == 1


def test_a_backward_graph_has_a_record_and_phases_of_its_own(backend: Backend) -> None:
    """UT-02, UT-16"""
    metrics.clear_compilation_metrics()
    timing.reset_frame_count()
    with config.patch(compiled_autograd=True):
        compiled = refimpl.optimize(backend)(step)
    compiled(twins()[0], torch.rand(5, 3))
    records = metrics.get_compilation_metrics()
    assert [type(record) for record in records].count(metrics.BwdCompilationMetrics) == 1
    of_backward = next(record for record in records if isinstance(record, metrics.BwdCompilationMetrics))
    assert of_backward.fail_type is None
    assert list(timing.frame_phase_timing[str(of_backward.compile_id)]) == ["backend_compile"]
    assert {"entire_frame_compile", "backend_compile"} <= set(timing.frame_phase_timing["1"])


# ------------------------------------------------------------------------------------------------------------- patches


def test_what_capture_leaves_out_of_torch_is_marked_once(backend: Backend) -> None:
    """DY-41"""
    refimpl.optimize(backend)
    TorchPatcher.patch.cache_clear()
    before = (torch.jit.trace, fx.Tracer.trace, torch.optim.LBFGS.step, torch.optim.Adam._init_group)
    TorchPatcher.patch()
    TorchPatcher.patch()
    assert TorchPatcher.patch.cache_info().misses == 1
    adam: Any = sys.modules["torch.optim.adam"]
    marked = [
        torch.jit.trace, torch.jit.trace_module, torch.jit._get_trace_graph, fx.Tracer.trace, adam._fused_adam,
        torch.optim.LBFGS.step, torch.optim.SparseAdam.step, torch.optim.SGD._init_group, torch.optim.Adam._init_group,
    ]  # fmt: skip
    assert all(getattr(function, "_torchdynamo_disable") for function in marked)
    assert (torch.jit.trace, fx.Tracer.trace, torch.optim.LBFGS.step, torch.optim.Adam._init_group) == before
    assert not hasattr(torch.optim.SGD.step, "_torchdynamo_disable")
    assert torch.distributions.Distribution._validate_args is False


def test_a_step_that_is_left_out_does_what_it_does(backend: Backend) -> None:
    """DY-41"""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight], max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    compiled = refimpl.optimize(backend)(lambda x: (optimizer.step(closure), x + 1))
    assert compiled(torch.ones(1))[1].tolist() == [2]
    assert weight.abs().max() < 1
    assert backend.targets() == [["add"]]


def test_importing_and_tracing_leave_torch_unmarked(run_fresh: Callable[..., Any]) -> None:
    """DY-41: a process that only traces is as it was."""
    source = (
        "import torch, refimpl\n"
        "refimpl.make_fx(lambda x: x + 1)(torch.ones(2))\n"
        "print(hasattr(torch.jit.trace, '_torchdynamo_disable'), torch.distributions.Distribution._validate_args)"
    )
    child = run_fresh(source)
    assert child.stdout.split() == ["False", "True"], child.stderr


def test_warnings_of_distributed_are_not_seen() -> None:
    """DY-42"""
    scope: dict[str, Any] = {"__name__": "torch.distributed.made_up"}
    exec(
        "import warnings\ndef f(x, kind=UserWarning):\n    warnings.warn('of distributed', kind)\n    return x + 1",
        scope,
    )
    noisy = scope["f"]
    with pytest.warns(UserWarning, match="of distributed"):
        noisy(1)
    quiet = TorchPatcher.suppress_torch_distributed_warnings(noisy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet(1) == 2
        with pytest.raises(RuntimeWarning):
            quiet(1, kind=RuntimeWarning)

    def of_the_program() -> None:
        warnings.warn("my own", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="my own"):
        TorchPatcher.suppress_torch_distributed_warnings(of_the_program)()


@pytest.fixture
def events() -> Iterator[list[str]]:
    seen: list[str] = []
    usage.usage_sinks.append(seen.append)
    yield seen
    usage.usage_sinks.remove(seen.append)


def test_every_public_call_is_one_event(events: list[str], backend: Backend) -> None:
    """DY-44"""
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    assert events == ["torch._dynamo.optimize"]
    refimpl.compile(plus_one, backend=backend)
    assert events == ["torch._dynamo.optimize"] * 2
    events.clear()
    exporter = refimpl.export_graph(plus_one)
    assert events == ["export.private_api:_dynamo"]
    exporter(torch.ones(2))
    assert events == ["export.private_api:_dynamo", "torch._dynamo.export"]
    events.clear()
    refimpl.export_graph(plus_one, _log_export_usage=False)(torch.ones(2))
    assert events == ["torch._dynamo.export"]
