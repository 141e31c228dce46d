"""Tests of `torch.autograd.Function` in transforms of torch.func: in one graph, with the results and errors of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl.tests.capture.capturing import captured_with, each_of, same

vjp: Any = torch.func.vjp  # which returns two or three objects
Y = torch.linspace(-1, 1, 3)


class Product(torch.autograd.Function):
    """Its derivatives are none of its forward, so that a test sees which was used."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        x, y = args
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad_outputs[0] * y * 1.5, grad_outputs[0] * x * 2.5

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad_inputs[0] * y * 3 + grad_inputs[1] * x * 5


class Power(torch.autograd.Function):
    """Two outputs, a number with a default, and no rule for vmap."""

    @staticmethod
    def forward(x: Any, k: float = 2.0) -> Any:
        return x**k, None, x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x, output[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, sine = ctx.saved_tensors
        return grad_outputs[0] * ctx.k * x * 1.5 + grad_outputs[2] * sine, None


class Ruled(torch.autograd.Function):
    """Its own rule for vmap, whose results tell that it was used."""

    @staticmethod
    def forward(x: Any, y: Any, k: int) -> Any:
        return x * y * k, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output[0])
        ctx.k = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, y, product = ctx.saved_tensors
        return grad_outputs[0] * y * ctx.k + grad_outputs[1] * product, grad_outputs[0] * x, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        assert in_dims[2] is None
        size = info.batch_size
        x, y = (
            arg.expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)
            for arg, dim in zip(args[:2], in_dims, strict=False)
        )
        product, _ = Ruled.apply(x, y, args[2])
        return (product * size, x.reshape(size, -1).sum(-1)), (0, 0)


class SumToNone(torch.autograd.Function):
    """Its rule for vmap returns a tensor that vmap does not run over."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return args[0].sum(in_dims[0]), None


def made(forward: Any, backward: Any, set_up: Any = None, *, has_rule: bool = True) -> Any:
    """A Function of these, which saves its arguments."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    namespace = {"forward": forward, "backward": backward, "setup_context": set_up or save}
    methods: dict[str, Any] = {name: staticmethod(method) for name, method in namespace.items()}
    return type("Made", (torch.autograd.Function,), {**methods, "generate_vmap_rule": has_rule})


def _exp(x: Any) -> Any:
    return x.exp()


def _mul(x: Any, y: Any) -> Any:
    return x * y


def _save_output(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


def _save_computed(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0].sin())


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.kept = inputs[0]


def _mark(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output)


def _materialize_none(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _only_needed(ctx: Any, g: Any) -> Any:
    x, y = ctx.saved_tensors
    first, second = ctx.needs_input_grad
    return g * y if first else None, g * x * 7 if second else None


def _times_saved(ctx: Any, g: Any) -> Any:
    return g * ctx.saved_tensors[0] * 1.5


def _by_pattern(ctx: Any, g: Any, h: Any) -> Any:
    return (0 if g is None else g * 2) + (0 if h is None else h * 3)


OUTPUT = made(_exp, _times_saved, _save_output)
COMPUTED = made(_exp, _times_saved, _save_computed)
KEPT = made(_exp, lambda ctx, g: g * ctx.kept * 1.5, _keep)
MARKED = made(lambda x: (x.exp(), x.cos()), lambda ctx, g, h: g * ctx.saved_tensors[1], _mark)
PATTERNS = made(lambda x: (x.exp(), x.sin()), _by_pattern, _materialize_none, has_rule=False)
NEEDED = made(_mul, _only_needed)
ONCE = made(_exp, once_differentiable(_times_saved), _save_output)
CLOSED = made(lambda x: x * Y, lambda ctx, g: g * Y * 2)
VIEW = made(lambda x: x[:2], lambda ctx, g: torch.nn.functional.pad(g, (0, 1)))
NESTED = made(lambda x: Product.apply(x, x), lambda ctx, g: Product.apply(g, ctx.saved_tensors[0]))
SHAPES = made(
    lambda x, k: x.sum() * k,
    lambda ctx, g: (g.expand(ctx.shape) * ctx.k, None),
    lambda ctx, inputs, output: (setattr(ctx, "shape", inputs[0].shape), setattr(ctx, "k", inputs[1]))[0],
)
NOISE = made(lambda x: x * torch.rand_like(x), _times_saved, _save_output)
IS_LEVEL = made(lambda x: x * 2 if x.requires_grad else x * 3, lambda ctx, g: g)
WRITES = made(lambda x: x.mul_(2).sin(), lambda ctx, g: g)


# ------------------------------------------------------------------------------------------------------------ one graph


def gradient(x: Any) -> Any:
    return grad(lambda a: Power.apply(a)[0].sum() + Power.apply(a, k=3.0)[2].sum())(x)


def second_gradient(x: Any) -> Any:
    return grad(lambda a: grad(lambda b: Product.apply(b, b.sin()).sum())(a).cos().sum())(x)


def mapped(x: Any) -> Any:
    return vmap(Product.apply, (0, None))(x, x[0]), vmap(Product.apply, (None, 1), 1)(x[0], x)


def mapped_twice(x: Any) -> Any:
    return vmap(vmap(Product.apply, (0, None)), (None, 0))(x[0], x[1])


def mapped_gradient(x: Any) -> Any:
    return vmap(grad(lambda a, b: Product.apply(a, b).sum(), (0, 1)), (0, None))(x, x[0])


def gradient_of_mapped(x: Any) -> Any:
    return grad(lambda a, b: vmap(Product.apply, (0, None))(a, b).sin().sum(), (0, 1))(x, x[0])


def products(x: Any) -> Any:
    out, pullback = vjp(Product.apply, x, x.sin())
    return out, pullback(out), pullback(out.cos())


def products_per_row(x: Any) -> Any:
    def row(a: Any, b: Any) -> Any:
        out, pullback = vjp(Product.apply, a, b)
        return out, pullback(out.cos())

    return vmap(row, (0, None))(x, x[1])


def directional(x: Any) -> Any:
    return jvp(Product.apply, (x, x.cos()), (x.sin(), x)), jvp(lambda a: Product.apply(a, x.cos()), (x,), (x,))


def directional_and_mapped(x: Any) -> Any:
    inner = vmap(lambda a: jvp(Product.apply, (a, x[0]), (a.sin(), a.cos())))(x)
    return inner, jvp(lambda a: vmap(Product.apply, (0, None))(a, x[0]), (x,), (x.sin(),))


def directional_gradient(x: Any) -> Any:
    function: Any = Product.apply
    inner = grad(lambda a: jvp(lambda b: function(b, b * 2), (a,), (a.sin(),))[1].sum())(x)
    return inner, jvp(grad(lambda a: function(a, a * 2).sum()), (x,), (x.sin(),))


def jacobians(x: Any) -> Any:
    def function(a: Any) -> Any:
        return Product.apply(a, a.sin())

    return jacrev(function)(x[0]), jacfwd(function)(x[0]), jacrev(jacrev(function))(x[0])


def hessians(x: Any) -> Any:
    return hessian(lambda a: Product.apply(a, a.sin()).sum())(x[0])


def ruled(x: Any) -> Any:
    return vmap(Ruled.apply, (0, 1, None))(x, x, 2), vmap(Ruled.apply, (0, None, None))(x, x[0], 2)


def ruled_twice(x: Any) -> Any:
    return vmap(vmap(Ruled.apply, (0, None, None)), (None, 0, None))(x, x.cos(), 3)


def ruled_gradients(x: Any) -> Any:
    def function(a: Any, b: Any) -> Any:
        product, total = Ruled.apply(a, b, 2)
        return (product.sin() * total).sum()

    inner = vmap(grad(function, (0, 1)), (0, None))(x, x[0])
    return inner, grad(lambda a: vmap(function, (0, None))(a, x[0]).sum())(x), grad(function)(x, x)


def ruled_without_slices(x: Any) -> Any:
    return vmap(lambda a: Ruled.apply(x, x, 2)[0] + a)(x), vmap(lambda a: SumToNone.apply(a) + a)(x)


def saved_values(x: Any) -> Any:
    return [
        each
        for function in (OUTPUT, COMPUTED)
        for each in (
            grad(lambda b, f=function: grad(lambda a: f.apply(a).sum())(b).sum())(x),
            vmap(grad(lambda a, f=function: f.apply(a).sum()))(x),
            grad(lambda a, f=function: vmap(f.apply)(a).sum())(x),
        )
    ]


def kept_values(x: Any) -> Any:
    return grad(lambda b: grad(lambda a: KEPT.apply(a).sum())(b).sum())(x)


def kept_below_gradients(x: Any) -> Any:
    return vmap(grad(lambda a: KEPT.apply(a).sum()))(x.detach())


def without_gradient(x: Any) -> Any:
    return grad(lambda a: MARKED.apply(a)[0].sum())(x), grad(lambda a: vmap(MARKED.apply)(a)[1].sum())(x)


def missing_gradients(x: Any) -> Any:
    return grad(lambda a: PATTERNS.apply(a)[0].sum())(x), grad(lambda a: PATTERNS.apply(a)[1].sum())(x)


def needed_gradients(x: Any) -> Any:
    return grad(lambda a: NEEDED.apply(a, Y).sum())(x), grad(lambda a, b: NEEDED.apply(a, b).sum(), (0, 1))(x, x)


def differentiable_once(x: Any) -> Any:
    return grad(lambda a: ONCE.apply(a).sum())(x)


def closed_over(x: Any) -> Any:
    return (
        grad(lambda a: CLOSED.apply(a).sum())(x),
        vmap(CLOSED.apply)(x),
        vmap(grad(lambda a: CLOSED.apply(a).sum()))(x),
    )


def view_of_the_argument(x: Any) -> Any:
    return grad(lambda a: VIEW.apply(a).sin().sum())(x[0])


def nested(x: Any) -> Any:
    def total(a: Any) -> Any:
        return NESTED.apply(a).sum()

    return grad(lambda b: grad(total)(b).sin().sum())(x), vmap(grad(total))(x), vmap(NESTED.apply)(x)


def shapes_of_slices(x: Any) -> Any:
    return vmap(lambda a: SHAPES.apply(a, 4))(x), vmap(grad(lambda a: SHAPES.apply(a, 3)))(x)


def noise(x: Any) -> Any:
    slices = vmap(NOISE.apply, randomness="different")(x), vmap(NOISE.apply, randomness="same")(x)
    return slices, grad(lambda a: NOISE.apply(a).sum())(x), torch.rand(2)


def one_argument_twice(x: Any) -> Any:
    return grad(lambda a: Product.apply(a, a).sum())(x)


def grad_mode_is_off(x: Any) -> Any:
    def function(a: Any) -> Any:
        with torch.no_grad():
            fixed: Any = Product.apply(a, a)
        return (a * fixed).sum()

    with torch.no_grad():
        return grad(function)(x)


WHOLE = (
    gradient, second_gradient, mapped, mapped_twice, mapped_gradient, gradient_of_mapped, products, products_per_row,
    directional, directional_and_mapped, directional_gradient, jacobians, hessians, ruled, ruled_twice, ruled_gradients,
    ruled_without_slices, saved_values, kept_values, kept_below_gradients, without_gradient, missing_gradients,
    needed_gradients, differentiable_once, closed_over, view_of_the_argument, nested, shapes_of_slices, noise,
    one_argument_twice, grad_mode_is_off,
)  # fmt: skip


def matrix(*, requires_grad: bool) -> Any:
    made = torch.tensor([[0.3, -1.2, 0.7], [1.5, 0.1, -0.4], [-0.8, 0.9, 2.1]])
    return made.requires_grad_(requires_grad)


def seen(function: Callable[..., Any], *, requires_grad: bool) -> Any:
    """The results from one seed, and the gradient of the argument."""
    torch.manual_seed(5)
    leaf = matrix(requires_grad=requires_grad)
    result = function(leaf)
    tensors = [each for each in tree_leaves(result) if each.requires_grad]
    total = sum((each * each.detach().cos()).sum() for each in tensors)
    found = torch.autograd.grad(total, leaf, allow_unused=True) if isinstance(total, torch.Tensor) else ()
    return result, found


@pytest.mark.fractional
@each_of(*WHOLE)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_function_in_a_transform_is_part_of_one_graph(program: Callable[..., Any], requires_grad: bool) -> None:
    captured, recorder, _ = captured_with(program, fullgraph=True)
    for _ in range(2):
        assert same(seen(captured, requires_grad=requires_grad), seen(program, requires_grad=requires_grad))
    assert len(recorder.graphs) == 1


@each_of(*WHOLE)
def test_a_traced_function_has_the_same_gradients(program: Callable[..., Any]) -> None:
    compiled = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    ours, theirs = (seen(function, requires_grad=True) for function in (compiled, program))
    torch.testing.assert_close(ours, theirs)


@each_of(mapped_gradient, gradient_of_mapped, products_per_row, ruled, ruled_gradients, shapes_of_slices, hessians)
def test_sizes_may_be_symbols(program: Callable[..., Any]) -> None:
    captured = captured_with(program, fullgraph=True, dynamic=True)[0]
    assert same(seen(captured, requires_grad=True), seen(program, requires_grad=True))


# ------------------------------------------------------------------------------------------------- what breaks the graph


def needed_at_different_levels(x: Any) -> Any:
    return grad(lambda a: grad(lambda b: NEEDED.apply(a, b).sum())(x.detach()).sin().sum())(x)


def asks_for_requires_grad(x: Any) -> Any:
    return grad(lambda a: IS_LEVEL.apply(a).sum())(x.detach() * 1)


def kept_below_vmap(x: Any) -> Any:
    return vmap(KEPT.apply)(x)


def tensor_of_the_level(x: Any) -> Any:
    def function(a: Any) -> Any:
        weight = a.sin()
        closing = made(lambda b: b * weight.detach(), lambda ctx, g: g * 2)
        return closing.apply(a).sum()

    return grad(function)(x)


def written_argument(x: Any) -> Any:
    y = x.clone()
    return vmap(WRITES.apply)(y), y


@each_of(needed_at_different_levels, asks_for_requires_grad, kept_below_vmap, tensor_of_the_level, written_argument)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_what_depends_on_the_level_is_run_by_eager(program: Callable[..., Any], requires_grad: bool) -> None:
    captured, _, options = captured_with(program)
    assert same(seen(captured, requires_grad=requires_grad), seen(program, requires_grad=requires_grad))
    assert options.breaks or (program is kept_below_vmap and not requires_grad)


def without_rule(x: Any) -> Any:
    return vmap(Power.apply)(x)


def without_jvp(x: Any) -> Any:
    return jvp(lambda a: Power.apply(a)[0], (x,), (x,))


def with_context_in_forward(x: Any) -> Any:
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            return args[0] * 2

    return grad(lambda a: Old.apply(a).sum())(x)


@each_of(without_rule, without_jvp, with_context_in_forward)
def test_errors_are_those_of_eager(program: Callable[..., Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
        program(matrix(requires_grad=False))
    with pytest.raises(type(theirs.value)) as ours:
        captured_with(program)[0](matrix(requires_grad=False))
    assert str(ours.value) == str(theirs.value)
