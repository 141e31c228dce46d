"""Hooks on tensors that captured code makes, and gradients with respect to them: all of a gradient passes, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, each_of, same


def hooked(x: Any) -> Any:
    v = x * 2
    w = v.sin()
    v.register_hook(lambda g: g * 3)
    return w, v.cos()


def kept(x: Any) -> Any:
    v = x * 2
    w = v.sin()
    v.retain_grad()
    return w, v.cos(), v


def asked_for(x: Any) -> Any:
    v, u = x * 2, x * 3
    w = (v * u).sin()
    first, second = torch.autograd.grad(w.sum(), [v, u], retain_graph=True)
    return first + second, w


def not_used_directly(x: Any) -> Any:
    v, _ = torch.kthvalue(x, 1, 0)
    w = -v
    v.register_hook(lambda g: g * 2)
    return w.neg_()


def in_a_loop(x: Any) -> Any:
    y = x
    for _ in range(3):
        x = x * 2
        y = x.sin()
        x.register_hook(lambda g: g + 1)
    return y, x.cos()


def helper(x: Any) -> Any:
    v = x * 2
    w = v.sin()
    v.register_hook(lambda g: g * 3)
    return w.cos()


def in_a_function(x: Any) -> Any:
    return helper(x) + 1


def written_before(x: Any) -> Any:
    v = x * 2
    v.add_(1)
    w = v.sin()
    v.register_hook(lambda g: g * 3)
    return w, v.cos()


def written_input(x: Any) -> Any:
    y = x.detach().sin()
    y = written(y, x)
    return y


def written(y: Any, x: Any) -> Any:
    y.mul_(x)
    z = -y
    first, second = torch.autograd.grad(z.sum(), [y, x], retain_graph=True)
    return z, first + second


def a_view(x: Any) -> Any:
    v = (x * 2).chunk(2)[0]
    w = v.sin()
    v.register_hook(lambda g: g * 3)
    return w


def not_reached(x: Any) -> Any:
    v = x * 2
    w = -x
    v.register_hook(lambda g: g * 3)
    torch.Tensor.register_hook(v, lambda g: g * 2)
    v.register_hook(hook=lambda g: g * 5)
    return w


def written_view(x: Any) -> Any:
    v = (x * 2)[1:]
    v.register_hook(lambda g: g * 3)
    v.neg_()
    v.register_hook(lambda g: g * 5)
    return v


def unbound(x: Any) -> Any:
    v = (x * 2)[1:]
    w = v.sin()
    torch.Tensor.register_hook(v, lambda g: g * 3)
    u = v.cos()
    torch.Tensor.retain_grad(u)
    return w, u, u.exp()


def unbound_and_written(x: Any) -> Any:
    v = (x * 2)[1:]
    torch.Tensor.register_hook(v, lambda g: g * 3)
    v.neg_()
    return v


def written_views(x: Any) -> Any:
    v = x.sin().view(2, 2)
    u = v[1]
    u.register_hook(lambda g: g * 3)
    v.register_hook(lambda g: g * 5)
    v.neg_()
    return u


def written_result_that_is_a_view(x: Any) -> Any:
    v = torch.nn.functional.conv_transpose1d(torch.ones(1, 3), x.view(1, 1, 4))
    v.register_hook(lambda g: g * 3)
    v.neg_()
    return v


def written_tensor(x: Any) -> Any:
    v = x * 2
    v.register_hook(lambda g: g * 3)
    v.neg_()
    return v


def by_its_step(x: Any) -> Any:
    v, u = x * 2, x * 3
    w = v.sin() * u
    v.grad_fn.register_prehook(lambda grads: tuple(g * 5 for g in grads))
    return w, u


def by_its_step_once_written(x: Any) -> Any:
    v = x * 2
    v.mul_(3)
    w = v.sin()
    v.grad_fn.register_hook(lambda inputs, grads: tuple(None if g is None else g * 5 for g in inputs))
    return w, v


def by_the_step_of_a_view(x: Any) -> Any:
    v = (x * 2).view(2, 2)
    w = v[1].sin()
    v.grad_fn.register_prehook(lambda grads: tuple(g * 5 for g in grads))
    return w, v.cos()


def by_the_step_behind_it(x: Any) -> Any:
    v = x * 2
    w = v.exp()
    w.grad_fn.next_functions[0][0].register_prehook(lambda grads: tuple(g * 5 for g in grads))
    return w, v


def assigned_data(x: Any) -> Any:
    v = x * 2
    w = v * v
    v.data = torch.ones(4)
    return w, v.sin()


def assigned_data_in_a_function(x: Any) -> Any:
    return assigns(x) + x.cos()


def assigns(x: Any) -> Any:
    v = x * 2
    w = v * v
    v.data = torch.ones(4)
    return w.exp()


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    hooked, kept, asked_for, not_used_directly, in_a_loop, in_a_function, written_before, written_input, a_view,
    not_reached, written_view, written_views, written_tensor, unbound, unbound_and_written, by_its_step,
    by_its_step_once_written, by_the_step_of_a_view, by_the_step_behind_it, assigned_data, assigned_data_in_a_function,
)  # fmt: skip
def test_gradients_of_what_is_made_in_a_segment_pass_its_hooks(program: Callable[..., Any], mode: str) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, breaks_at=MODES[mode]))
    for _ in range(2):
        found = []
        for function in (program, captured):
            x = torch.linspace(0.1, 1, 4, requires_grad=True)
            results = function(x)
            results = results if isinstance(results, tuple) else (results,)
            torch.stack([result.sum() for result in results]).sum().backward()
            found.append((x.grad, [r.detach() for r in results], [r.grad for r in results if r.retains_grad]))
        torch.testing.assert_close(found[1], found[0])


def made_elsewhere(x: Any) -> Any:
    return x[0] * 3, (x * 2)[1:]


def written_view_of_a_graph_before(x: Any) -> Any:
    w, v = made_elsewhere(x)
    v.register_hook(lambda g: g * 3)
    v.neg_()
    return w * v


def view_of_a_graph_before(x: Any) -> Any:
    w, v = made_elsewhere(x)
    v.neg_()
    v.register_hook(lambda g: g * 3)
    w.register_hook(lambda g: g * 5)
    w.neg_()
    return w * v


@each_of(written_result_that_is_a_view, written_view_of_a_graph_before, view_of_a_graph_before)
def test_a_hook_does_not_stay_with_a_view_that_is_written(program: Callable[..., Any]) -> None:
    assert_same_gradient(program, with_options(program, CaptureOptions(backend=aot_eager)))


def assert_same_gradient(program: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    found = []
    for function in (program, compiled):
        x = torch.linspace(0.1, 1, 4, requires_grad=True)
        found.append(torch.autograd.grad(function(x).sum(), x))
    assert same(found[1], found[0])


def detached_after_a_write(x: Any) -> Any:
    v = x.neg()
    w = v[1:]
    v[:1].mul_(2)
    other = x * 2
    other.add_(1)
    v.detach_()
    return w, v, other


def detached_after_a_history_is_seen(x: Any) -> Any:
    v = x.neg()
    w = v[1:]
    v.mul_(2)
    u = w.sin()
    v.detach_()
    return w, v, u


def detached_by_a_function(x: Any) -> Any:
    v = x.neg()
    w = v[1:]
    v.mul_(2)
    torch.detach_(v)
    return w.exp(), v


def detached_in_a_function(x: Any) -> Any:
    v = x.neg()
    return detaches(v).exp(), v


def detaches(v: Any) -> Any:
    w = v[1:]
    for _ in range(2):
        v.mul_(2)
    v.detach_()
    return w


def detached_unwritten(x: Any) -> Any:
    v = x.neg()
    w = v[1:]
    v.detach_()
    return w, v


DETACHED = (
    detached_after_a_write, detached_after_a_history_is_seen, detached_by_a_function, detached_in_a_function,
    detached_unwritten,
)  # fmt: skip


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(*DETACHED)
def test_what_a_view_keeps_of_a_base_that_is_detached(program: Callable[..., Any], mode: str) -> None:
    def gradients(function: Any) -> list[Any]:
        x = torch.linspace(0.1, 1, 4, requires_grad=True)
        results = [r for r in function(x) if r.requires_grad]
        return [torch.autograd.grad(r.sum(), x, allow_unused=True, retain_graph=True) for r in results]

    captured = with_options(program, CaptureOptions(backend=aot_eager, breaks_at=MODES[mode]))
    for _ in range(2):
        assert same(gradients(captured), gradients(program))


@each_of(*DETACHED)
def test_a_trace_does_not_detach_what_has_views(program: Callable[..., Any]) -> None:
    x = torch.linspace(0.1, 1, 4, requires_grad=True)
    with pytest.raises(UnsupportedByRefimpl, match="detach_"):
        compile_aot(program)(x)


def test_a_trace_detaches_what_has_no_views() -> None:
    def program(x: Any) -> Any:
        v = x.neg()
        v[1:].mul_(2)
        v.detach_()
        return v * x

    assert_same_gradient(program, compile_aot(program))


def test_what_is_not_used_otherwise_stays_in_one_graph() -> None:
    def program(x: Any) -> Any:
        y = x.sin()
        v = y * 2
        v.register_hook(lambda g: g * 3)
        return v

    made = CaptureOptions(backend=aot_eager)
    captured = with_options(program, made)
    x = torch.ones(2, requires_grad=True)
    assert same(captured(x).detach(), program(x).detach())
    segments = [segment for function in made.functions.values() for segment in function.cache.segments()]
    assert sum(segment.graph is not None for segment in segments) <= 2  # that of the hook, perhaps
