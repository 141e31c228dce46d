"""Tests of `torch.autograd.Function` with gradients in captured code: forward and backward are graphs of one node."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, assert_agrees_at, captured_with, each_of, same

LIMIT = 1.5
FACTOR = torch.tensor([2.0, 3.0, 4.0, 5.0])


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, limit: float) -> Any:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < ctx.limit) * x, None


class Signed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, unused: Any) -> Any:
        sign = torch.sign(x)
        ctx.save_for_backward(sign)
        ctx.mark_non_differentiable(sign)
        return x.abs(), sign, "both"

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_sign: Any, of_text: Any) -> Any:
        (sign,) = ctx.saved_tensors
        return gradient * sign + of_sign, None


class Cubed(torch.autograd.Function):
    """Keeps a result of its own, one that it gives, an argument and numbers."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        squared = x * x
        result = squared * x
        ctx.squared = squared
        ctx.size = x.shape[0]
        ctx.save_for_backward(x, None, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, nothing, result = ctx.saved_tensors
        assert nothing is None
        return gradient * (ctx.squared + 2 * x * x + 0 * result) * ctx.size


class Exponential(torch.autograd.Function):
    """A Function with `setup_context`, and with a default argument."""

    @staticmethod
    def forward(x: Any, scale: float = 2.0) -> Any:
        return torch.exp(x) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (output,) = ctx.saved_tensors
        return gradient * output * ctx.scale, None


class Partly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return x * y * FACTOR[: x.shape[0]]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, y = ctx.saved_tensors
        of_x = gradient * y * FACTOR[: x.shape[0]] if ctx.needs_input_grad[0] else None
        of_y = gradient * x * 100 if ctx.needs_input_grad[1] else None
        return of_x, of_y


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x * 7


class Unfilled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        if first is None:
            return second * 1000
        return first * 2 if second is None else first * 20 + second


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 20


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view(-1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.reshape(-1) * 3


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        with torch.enable_grad():
            inner = torch.sin(x) * 2
        return inner.detach() + torch.is_grad_enabled()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return Clipped.apply(gradient * torch.cos(x), LIMIT)


class Listed(torch.autograd.Function):
    """The tensors in a list are none that autograd sees."""

    @staticmethod
    def forward(ctx: Any, tensors: Any, x: Any) -> Any:
        ctx.tensors = tensors
        return sum(tensors, x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, gradient * ctx.tensors[0]


clip = Clipped.apply


def clipped(x: Any) -> Any:
    return clip(x * 2, LIMIT) + x


def signed(x: Any) -> Any:
    size, sign, text = Signed.apply(x, x * 2)
    return size * 2 + sign, sign, text, sign.requires_grad


def cubed(x: Any) -> Any:
    return Cubed.apply(x * 1)


def exponential(x: Any) -> Any:
    return Exponential.apply(x), Exponential.apply(x, 3.0)


def partly(x: Any) -> Any:
    y = Partly.apply(x, x.detach())
    return y, Partly.apply(x, y)


def twice(x: Any) -> Any:
    return Partly.apply(x, x)


def once(x: Any) -> Any:
    return Once.apply(x) + x * x


def first_alone(x: Any) -> Any:
    return Unfilled.apply(x)[0]


def second_alone(x: Any) -> Any:
    return Unfilled.apply(x)[1]


def both(x: Any) -> Any:
    a, b = Unfilled.apply(x)
    return a + b


def doubled(x: Any) -> Any:
    y = x * 1
    z = Doubled.apply(y)
    return y is z, y + z


def given_back(x: Any) -> Any:
    y = Same.apply(x)
    return y is x, y * 2


def viewed(x: Any) -> Any:
    y: Any = Viewed.apply(x)
    return y.shape[0], y.sin()


def nested(x: Any) -> Any:
    return Nested.apply(x).cos()


def listed(x: Any) -> Any:
    return Listed.apply([x * 2, x], x)


def under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y: Any = Exponential.apply(x)
    return y.requires_grad, y * x


PROGRAMS: list[Callable[..., Any]] = [
    clipped, signed, cubed, exponential, partly, twice, once, first_alone, second_alone, both, doubled, given_back, viewed,
    nested, listed, under_no_grad,
]  # fmt: skip


def vectors() -> list[torch.Tensor]:
    return [torch.tensor([0.3, -1.2, 0.6, 0.9]), torch.tensor([0.5, 0.25]), torch.tensor([0.7, 0.1, -0.2, 0.4])]


def gradient_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the gradient of the sum of squares of what the function gives."""

    def run(x: Any) -> Any:
        total: Any = sum(
            (r * r).sum() for r in tree_leaves(function(x)) if isinstance(r, torch.Tensor) and r.requires_grad
        )
        return torch.autograd.grad(total, x, create_graph=True)

    return run


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(*PROGRAMS)
def test_values_and_gradients_are_those_of_eager(program: Callable[..., Any], mode: str) -> None:
    captured, recorder, options = captured_with(program, breaks_at=MODES[mode], fullgraph=MODES[mode] is None)
    assert_agrees_at(program, captured, *vectors())
    if MODES[mode] is None:
        assert not options.breaks
        assert "autograd_function_apply" in recorder.targets


@each_of(*PROGRAMS)
def test_they_are_those_of_eager_behind_aot_autograd(program: Callable[..., Any]) -> None:
    captured = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    assert_agrees_at(program, captured, *vectors())


@each_of(clipped, cubed, exponential, partly, given_back, nested)
def test_second_derivatives_are_those_of_eager(program: Callable[..., Any]) -> None:
    captured, _, _ = captured_with(program, fullgraph=True)
    assert_agrees_at(gradient_of(program), gradient_of(captured), *vectors())


def test_what_is_once_differentiable_is_not_twice() -> None:
    captured, _, _ = captured_with(once, fullgraph=True)
    for function in (once, captured):
        x = torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad((function(x) * x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_saved_tensors_are_checked_for_writes_and_others_are_not() -> None:
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, saves: bool) -> Any:
            ctx.x = x
            if saves:
                ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * (ctx.saved_tensors[0] if ctx.saved_tensors else ctx.x), None

    def program(x: Any, saves: bool) -> Any:
        y = x * 2
        return y, Kept.apply(y, saves)

    captured, _, _ = captured_with(program, fullgraph=True)
    for function in (program, captured):
        x = torch.ones(3, requires_grad=True)
        y, z = function(x, False)
        with torch.no_grad():
            y.mul_(5)
        assert torch.autograd.grad(z.sum(), x)[0].tolist() == [20, 20, 20]
        y, z = function(x, True)
        with torch.no_grad():
            y.mul_(5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(z.sum(), x)


def test_a_function_without_backward_says_so_when_it_is_asked() -> None:
    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    captured, _, _ = captured_with(lambda x: Forward.apply(x), fullgraph=True)
    y = captured(torch.ones(2, requires_grad=True))
    assert y.requires_grad
    with pytest.raises(NotImplementedError, match="backward or vjp"):
        y.sum().backward()


def test_what_the_functions_close_over_is_guarded() -> None:
    scale = 2

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * scale

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * scale * 10

    def program(x: Any) -> Any:
        return Scaled.apply(x)

    captured, recorder, _ = captured_with(program, fullgraph=True)
    for scale in (2, 3, 2):  # noqa: B007 - the functions read it
        assert_agrees_at(program, captured, vectors()[0])
    assert len(recorder.graphs) == 2


def test_one_graph_serves_all_sizes() -> None:
    captured, recorder, _ = captured_with(cubed, fullgraph=True)
    for size in (3, 4, 5, 6):
        assert_agrees_at(cubed, captured, torch.linspace(-1, 1, size))
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_of(cubed, partly, clipped, both)
def test_symbolic_sizes_from_the_start(program: Callable[..., Any], backend: str) -> None:
    captured = refimpl.compile(program, backend=backend, fullgraph=True, dynamic=True)
    for size in (2, 3, 4):
        assert_agrees_at(program, captured, torch.linspace(-1, 1, size))


@pytest.mark.parametrize("is_inside", [False, True])
def test_backward_casts_as_where_it_runs(is_inside: bool) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return (x @ x) * gradient.to(x.dtype)

    def program(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Product.apply(x)

    captured, _, _ = captured_with(program, fullgraph=True)
    found = []
    for function in (program, captured):
        x = (torch.arange(16.0).view(4, 4) / 7).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_inside):
            y = function(x)
            found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert same(*found)


@each_of(clipped, cubed, partly, both, doubled, nested)
def test_a_graph_that_has_them_is_captured_again(program: Callable[..., Any]) -> None:
    first, recorder, _ = captured_with(program, fullgraph=True)
    first(vectors()[0].requires_grad_())
    (graph,) = recorder.graphs
    rest = [FACTOR for node in graph.graph.nodes if node.op == "placeholder"][1:]
    again, recorder, _ = captured_with(lambda x: graph(x, *rest), fullgraph=True)
    calls = vectors()[0], vectors()[2]
    assert_agrees_at(lambda x: graph(x, *rest), again, *calls)
    assert_agrees_at(program, again, *calls, parts=("gradients", "refusals"))
    assert "autograd_function_apply" in recorder.targets


def test_the_node_has_the_functions_name() -> None:
    captured, _, _ = captured_with(clipped, fullgraph=True)
    y = captured(torch.ones(2, requires_grad=True))
    assert y.grad_fn.next_functions[0][0].name() == "ClippedBackward"
