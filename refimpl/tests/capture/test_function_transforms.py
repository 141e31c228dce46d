"""Tests of torch.func in captured code: one graph, whose results, gradients and errors are those of eager mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vmap,
)
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl._torch import transform_depth
from refimpl.capture.public.errors import TorchRuntimeError, Unsupported
from refimpl.tests.capture.capturing import captured_with, each_of, same

ONES = torch.ones(3)
vjp: Any = torch.func.vjp  # which returns two or three objects


def matrix(*, requires_grad: bool = False) -> torch.Tensor:
    made = torch.tensor([[0.3, -1.2, 0.7], [1.5, 0.1, -0.4], [-0.8, 0.9, 2.1]])
    return made.requires_grad_(requires_grad)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.scale = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
        self.register_buffer("offset", torch.tensor([0.5, 0.25]))
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(6.0).reshape(2, 3) / 7)
            self.linear.bias.fill_(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.scale + self.offset).tanh()


MODULE = Scaled()
MODULES = [torch.nn.Linear(3, 2) for _ in range(3)]
STACKED = stack_module_state(MODULES)


# -------------------------------------------------------------------------------------------------------------------- vmap


def mapped_rows(x: Any) -> Any:
    y = x.sin()
    return vmap(lambda row: row.softmax(-1) * 2)(y).cos() + y


def mapped_over_dims(x: Any) -> Any:
    return vmap(lambda a, b, c: a * b.sum() + c, in_dims=(1, None, -1), out_dims=1)(x, x, x)


def mapped_trees(x: Any) -> Any:
    def function(given: Any, k: int) -> Any:
        return {"sum": given["a"].sum() * k, "rest": (given["a"], [given["b"] + 1])}

    out_dims: Any = {"sum": 0, "rest": (1, [0])}
    return vmap(function, in_dims=({"a": 0, "b": None}, None), out_dims=out_dims)({"a": x, "b": x[0]}, 3)


def mapped_twice(x: Any) -> Any:
    return vmap(vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(None, 0))(x[0], x[1])


def mapped_closure(x: Any) -> Any:
    weight = x @ x
    return vmap(lambda row: torch.dot(row, row) * weight)(x)


def mapped_in_chunks(x: Any) -> Any:
    return vmap(lambda a, b: (a @ b, a), in_dims=(0, 1), out_dims=(0, 1), chunk_size=2)(x, x)


def mapped_differently(x: Any) -> Any:
    return vmap(lambda row: torch.nn.functional.dropout(row + torch.randn(3)), randomness="different")(x)


def mapped_with_the_same(x: Any) -> Any:
    return vmap(vmap(lambda a: a + torch.rand_like(a), randomness="same"), randomness="different")(x)


def mapped_partial(x: Any) -> Any:
    return vmap(functools.partial(torch.nn.functional.elu, alpha=0.5))(x) + vmap(functools.partial(torch.mul, 2))(x)


def mapped_decorated(x: Any) -> Any:
    @torch.vmap
    def doubled(row: Any) -> Any:
        return row * 2

    return doubled(x)


def mapped_writes(x: Any) -> Any:
    def function(row: Any) -> Any:
        made = torch.zeros_like(row)
        made[1:] = row[1:]
        made.add_(row)
        return made

    y = x.clone()
    vmap(lambda row: row.mul_(2))(y)
    return vmap(function)(x), y


def mapped_by_shape(x: Any) -> Any:
    seen = []

    def function(row: Any) -> Any:
        seen.append((row.shape, row.dim(), row.requires_grad))
        return row.sum() if row.shape[0] == 3 else row.prod()

    return vmap(function)(x), seen


def mapped_structures(x: Any) -> Any:
    found = vmap(lambda row: torch.topk(row, 2))(x)
    return found.values, found.indices, vmap(lambda row: row.sort().values)(x)


def mapped_in_a_loop(x: Any) -> Any:
    for k in range(3):
        x = vmap(lambda row, k=k: row + k)(x)
    return x


def mapped_module(x: Any) -> Any:
    return vmap(MODULE)(x)


# --------------------------------------------------------------------------------------------------------------- gradients


def gradient(x: Any) -> Any:
    weight = x.cos()
    return grad(lambda a: (a.sin() * weight).sum())(x)


def gradients_of_arguments(x: Any) -> Any:
    return grad(lambda a, b, *, k: (a * b * k).sum(), argnums=(0, 1))(x, x + 1, k=2)


def gradients_of_trees(x: Any) -> Any:
    return grad(lambda given: (given["w"] * given["b"][0]).sum())({"w": x, "b": [x + 1]})


def gradient_with_aux(x: Any) -> Any:
    return grad(lambda a: (a.sin().sum(), {"y": a.cos(), "k": (a * 2,)}), has_aux=True)(x)


def gradient_and_value(x: Any) -> Any:
    return grad_and_value(lambda a: (a.exp().sum(), a), has_aux=True)(x)


def third_gradient(x: Any) -> Any:
    return grad(grad(grad(torch.sin)))(x[0, 0])


def gradient_of_a_constant(x: Any) -> Any:
    return grad(lambda a: ONES.sum())(x), grad(lambda a: (a * a.detach()).sum())(x)


def gradient_without_grad_mode(x: Any) -> Any:
    def function(a: Any) -> Any:
        with torch.no_grad():
            fixed = a**2
        return (a**2 - fixed).sum()

    with torch.no_grad():
        return grad(function)(x)


def gradient_flags(x: Any) -> Any:
    seen = []

    def function(a: Any) -> Any:
        seen.append((a.requires_grad, (a * 2).requires_grad, torch.is_grad_enabled()))
        return a.sum()

    return grad(function)(x), seen


def gradient_in_place(x: Any) -> Any:
    def function(a: Any) -> Any:
        b = a * 1
        b.mul_(a)
        return b.sum()

    return grad(function)(x)


def gradients_per_sample(x: Any) -> Any:
    targets = torch.tensor([0, 1, 1])
    parameters = dict(MODULE.named_parameters())

    def loss(given: Any, row: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(MODULE, given, (row[None],)), target[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, targets)


def adapted(x: Any) -> Any:
    def inner(w: Any, row: Any) -> Any:
        return w - 0.1 * grad(lambda w: ((w * row).sum() - 1) ** 2)(w)

    return grad(lambda w: vmap(lambda row: ((inner(w, row) * row).sum() - 1) ** 2)(x).mean())(x[0])


def products(x: Any) -> Any:
    out, pullback = vjp(lambda a, b: {"u": a * b, "v": (a + b).sum()}, x, x + 1)
    return out, pullback(out), pullback({"u": x, "v": torch.ones(())})


def products_with_aux(x: Any) -> Any:
    out, pullback, aux = vjp(lambda a: (a.sin(), a.cos()), x[0], has_aux=True)
    return out, vmap(pullback)(torch.eye(3)), aux


def tangents(x: Any) -> Any:
    return jvp(lambda a, b: (a * b).sin(), (x, x + 1), (x, x)), jvp(lambda a: (a.sin(), a), (x,), (x,), has_aux=True)


def tangents_of_tangents(x: Any) -> Any:
    return jvp(lambda a: jvp(torch.sin, (a,), (a,), strict=True)[1], (x,), (x,))


def mixed_modes(x: Any) -> Any:
    forward_over_reverse = jvp(grad(lambda a: (a**3).sum()), (x,), (x,))
    reverse_over_forward = grad(lambda a: jvp(torch.sin, (a,), (a,))[1].sum())(x)
    return forward_over_reverse, reverse_over_forward, vmap(lambda row: jvp(torch.tanh, (row,), (row,)))(x)


def jacobians(x: Any) -> Any:
    def function(a: Any, b: Any) -> Any:
        return {"s": a.sin() * b, "c": a.sum()}

    row = x[0]
    return jacrev(function, argnums=(0, 1))(row, row + 1), jacfwd(lambda a, b: a * b.sin(), argnums=1)(row, row + 1)


def jacobians_in_chunks(x: Any) -> Any:
    return [jacrev(lambda a: (a.sin(), a.cos()), has_aux=True, chunk_size=size)(x[0]) for size in (None, 1, 2)]


def jacobian_of_builtin(x: Any) -> Any:
    return jacfwd(torch.sin)(x[0]), jacrev(torch.exp)(x[0]), vmap(jacrev(lambda a: a * x[0]))(x)


def hessians(x: Any) -> Any:
    return hessian(lambda a, b: (a**3 * b).sum(), argnums=(0, 1))(x[0], x[1]), jacrev(jacfwd(lambda a: a.sin().sum()))(
        x[0]
    )


# ----------------------------------------------------------------------------------------------------------------- modules


def called_with_parameters(x: Any) -> Any:
    doubled = {name: parameter * 2 for name, parameter in MODULE.named_parameters()}
    return functional_call(MODULE, doubled, (x,)), MODULE(x), functional_call(MODULE, {"scale": x[0, :2]}, x)


def jacobian_of_parameters(x: Any) -> Any:
    return jacrev(functional_call, argnums=1)(MODULE, dict(MODULE.named_parameters()), (x,))


def ensemble(x: Any) -> Any:
    def call(parameters: Any, buffers: Any, given: Any) -> Any:
        return functional_call(MODULES[0], (parameters, buffers), (given,))

    return vmap(call, in_dims=(0, 0, None))(*STACKED, x)


def parameters_swapped(x: Any) -> Any:
    before = MODULE._parameters["scale"]
    MODULE._parameters["scale"] = x[0, :2]
    found = MODULE.scale * 2, MODULE(x), hasattr(MODULE, "scale")
    MODULE._parameters["scale"] = before
    return found, MODULE.scale + 0


MAPPED = (
    mapped_rows, mapped_over_dims, mapped_trees, mapped_twice, mapped_closure, mapped_in_chunks, mapped_differently,
    mapped_with_the_same, mapped_partial, mapped_decorated, mapped_writes, mapped_by_shape, mapped_structures,
    mapped_in_a_loop, mapped_module,
)  # fmt: skip
DIFFERENTIATED = (
    gradient, gradients_of_arguments, gradients_of_trees, gradient_with_aux, gradient_and_value, third_gradient,
    gradient_of_a_constant, gradient_without_grad_mode, gradient_flags, gradient_in_place, gradients_per_sample, adapted,
    products, products_with_aux, tangents, tangents_of_tangents, mixed_modes, jacobians, jacobians_in_chunks,
    jacobian_of_builtin, hessians,
)  # fmt: skip
OF_MODULES = (called_with_parameters, jacobian_of_parameters, ensemble, parameters_swapped)
PROGRAMS = (*MAPPED, *DIFFERENTIATED, *OF_MODULES)


def assert_agrees(program: Callable[..., Any], compiled: Callable[..., Any], *, requires_grad: bool = False) -> None:
    """Results, and gradients through them where the input requires grad; twice, because the second call reuses the graph."""
    for _ in range(2):
        results = []
        for function in (program, compiled):
            torch.manual_seed(3)
            x = matrix(requires_grad=requires_grad)
            out = function(x)
            leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            found = [leaf.sum() for leaf in leaves if leaf.requires_grad]
            gradients = torch.autograd.grad(found, x, allow_unused=True) if found and requires_grad else ()
            results.append((out, [leaf.requires_grad for leaf in leaves], [g for g in gradients if g is not None]))
        expected, actual = results
        torch.testing.assert_close(_tensors(actual), _tensors(expected))
        assert _others(actual) == _others(expected)
        assert not transform_depth()


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _others(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if not isinstance(leaf, torch.Tensor)]


@each_of(*PROGRAMS)
def test_a_transform_is_part_of_one_graph(program: Callable[..., Any]) -> None:
    compiled, recorder, made = captured_with(program, fullgraph=True)
    assert_agrees(program, compiled)
    assert len(recorder.graphs) == 1
    assert not made.breaks


@each_of(*PROGRAMS)
def test_an_outer_gradient_passes_through_a_traced_transform(program: Callable[..., Any]) -> None:
    requires_grad = program not in (mapped_writes, parameters_swapped)
    assert_agrees(program, refimpl.compile(program, backend="aot_eager", fullgraph=True), requires_grad=requires_grad)


@each_of(mapped_over_dims, mapped_in_chunks, gradients_per_sample, products_with_aux, jacobians, hessians, ensemble)
def test_sizes_may_be_symbols(program: Callable[..., Any]) -> None:
    compiled = refimpl.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    assert_agrees(program, compiled)


def test_one_graph_serves_several_sizes() -> None:
    def program(x: Any) -> Any:
        return vmap(grad(lambda row: (row**3).sum()))(x) * x.shape[0]

    compiled, recorder, _ = captured_with(program, fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.arange(rows * 2.0).reshape(rows, 2)
        assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


# --------------------------------------------------------------------------------------------------------- breaks, errors


def broken_inside(x: Any) -> Any:
    def function(row: Any) -> Any:
        made = row.sin()
        torch._dynamo.graph_break()
        return made.cos()

    y = x * 2
    return vmap(function)(y) + y


def broken_after_products(x: Any) -> Any:
    out, pullback = vjp(torch.sin, x)
    torch._dynamo.graph_break()
    return pullback(out), pullback(x)


def data_read_inside(x: Any) -> Any:
    return grad(lambda a: a.sum() if a.sum().detach() > 100 else (a * 2).sum())(x + 1) * 2


def product_function(x: Any) -> Any:
    return vjp(torch.sin, x)[1]


@each_of(broken_inside, broken_after_products, data_read_inside)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_segment_ends_before_a_transform_that_breaks_the_graph(program: Callable[..., Any], backend: str) -> None:
    assert_agrees(program, refimpl.compile(program, backend=backend))
    with pytest.raises(Unsupported):
        refimpl.compile(program, backend=backend, fullgraph=True)(matrix())
    assert not transform_depth()


def test_a_tensor_of_a_transform_is_not_returned() -> None:
    x = matrix()
    expected = product_function(x)(x)
    assert same(refimpl.compile(product_function, backend="aot_eager")(x)(x), expected)
    with pytest.raises(Unsupported, match=r"a tensor of a torch\.func transform cannot be rebuilt"):
        refimpl.compile(product_function, backend="aot_eager", fullgraph=True)(x)


def raised_and_handled(x: Any) -> Any:
    found = []
    for function in (lambda row: 3, lambda row: None, lambda row: (row, 2)):
        try:
            found.append(vmap(function)(x))
        except ValueError as error:
            found.append(type(error).__name__)
    return found, x + 1


def test_errors_of_a_transform_are_handled_in_the_graph() -> None:
    assert_agrees(raised_and_handled, captured_with(raised_and_handled, fullgraph=True)[0])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(torch.sin, in_dims=5)(x), lambda x: grad(torch.sin)(x), lambda x: vmap(lambda row: row.sum().item())(x),
        lambda x: vmap(lambda row: row + torch.randn(3))(x), lambda x: jvp(torch.sin, x, x),
        lambda x: vmap(torch.sin, randomness="none")(x), lambda x: vjp(torch.sin, x)[1]((x, x)),
        lambda x: jacrev(torch.sin)(x.to(torch.complex64)), lambda x: vmap(lambda row: row if row.sum() > 0 else -row)(x),
    ],
)  # fmt: skip
def test_errors_are_those_of_eager(program: Callable[..., Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)) as expected:
        program(matrix())
    with pytest.raises(type(expected.value)) as raised:
        refimpl.compile(program, backend="eager")(matrix())
    assert str(raised.value) == str(expected.value)
    with pytest.raises((Unsupported, TorchRuntimeError)):
        refimpl.compile(program, backend="eager", fullgraph=True)(matrix())
    assert not transform_depth()


def test_an_error_of_the_graph_leaves_its_transforms() -> None:
    def program(x: Any, index: Any) -> Any:
        return vmap(lambda row: torch.gather(row, 0, index))(x)

    compiled = refimpl.compile(program, backend="eager", fullgraph=True)
    x, index = matrix(), torch.tensor([0, 2])
    assert same(compiled(x, index), program(x, index))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, index + 7)
    assert not transform_depth()
    assert same(compiled(x, index), program(x, index))


# ----------------------------------------------------------------------------------------- compiled functions and transforms


def test_transforms_of_compiled_functions() -> None:
    """A transform copies the attributes of the function it transforms, and must not be taken for the function."""

    def summed(x: Any) -> Any:
        return (x**2).sum()

    x = matrix()
    for outer in (grad, jacrev, hessian, vmap):
        transformed = outer(refimpl.compile(summed, backend="eager"))
        assert same(transformed(x), outer(summed)(x))
        for program in (transformed, lambda x, transformed=transformed: transformed(x)):
            compiled = refimpl.compile(program, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), outer(summed)(x))


def test_a_wrapper_of_a_compiled_function_is_compiled_itself() -> None:
    inner = refimpl.compile(torch.nn.functional.relu, backend="eager")

    @functools.wraps(inner)
    def negated(x: Any) -> Any:
        return -inner(x)

    x = matrix()
    assert same(refimpl.compile(negated, backend="eager")(x), -x.relu())
    assert same(refimpl.compile(lambda x: negated(x), backend="eager")(x), -x.relu())


@pytest.mark.parametrize(
    ("mapped", "is_the_input"),
    [
        (vmap(torch.Tensor.cos_), True),
        (vmap(lambda row: row), True),
        (vmap(lambda row: row, in_dims=1), False),
        (vmap(torch.cos), False),
    ],
    ids=["written in place", "returned", "another dimension", "computed"],
)
def test_what_vmap_returns_may_be_the_input_itself(mapped: Any, is_the_input: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        y = mapped(x)
        return y is x, y + 1

    x, other = matrix(), matrix()
    found = captured_with(program, fullgraph=True)[0](x)
    assert same(found, program(other))
    assert found[0] is is_the_input
    assert same(x, other)
