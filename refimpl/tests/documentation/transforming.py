"""Examples of torch.func's guides, in compiled functions and in graphs of make_fx."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves

from refimpl.tests.documentation.example import Page, equal, leaf, raising

_AREA = "torch.func"
tour = Page(_AREA, "torch.func Whirlwind Tour", "func.whirlwind_tour.html")
limits = Page(_AREA, "UX Limitations", "func.ux_limitations.html")
jacobians = Page(_AREA, "Jacobians, Hessians, hvp, vhp, and more", "intermediate/jacobians_hessians.html")
per_sample = Page(_AREA, "Per-sample-gradients", "intermediate/per_sample_grads.html")
ensembles = Page(_AREA, "Model ensembling", "intermediate/ensembling.html")
tangent_kernels = Page(_AREA, "Neural Tangent Kernels", "intermediate/neural_tangent_kernels.html")
reference = Page(_AREA, "torch.func API Reference", "func.api.html")
migrating = Page(_AREA, "Migrating from functorch to torch.func", "func.migrating.html")


def _both(api: Any, function: Any, *inputs: Any) -> None:
    """The function, compiled as one graph, gives eager's values."""
    expected = tree_leaves(function(*inputs))
    compiled = api.compile(function, backend="aot_eager", fullgraph=True)(*inputs)
    for one, other in zip(tree_leaves(compiled), expected, strict=True):
        equal(one, other)


def _traced(api: Any, function: Any, *inputs: Any) -> None:
    """A graph of make_fx gives eager's values."""
    expected = tree_leaves(function(*inputs))
    graph = api.fx.experimental.proxy_tensor.make_fx(function)(*inputs)
    for one, other in zip(tree_leaves(graph(*inputs)), expected, strict=True):
        equal(one, other)


@tour
def a_second_derivative(api: Any) -> None:
    """grad of grad."""
    _both(api, lambda x: grad(grad(torch.sin))(x), torch.tensor(0.7))


@tour(entry="make_fx")
def a_second_derivative_traced(api: Any) -> None:
    """grad of grad, as a graph of aten operators."""
    _traced(api, lambda x: grad(grad(torch.sin))(x), torch.tensor(0.7))


@tour
def vmap_of_a_product(api: Any) -> None:
    """vmap over the first dimension of both arguments, and over one of them."""

    def body(rows: torch.Tensor, weight: torch.Tensor) -> Any:
        return vmap(torch.dot)(rows, rows + 1), vmap(torch.dot, (0, None))(rows, weight)

    _both(api, body, torch.randn(3, 4), torch.randn(4))


@tour(entry="make_fx")
def vmap_of_a_product_traced(api: Any) -> None:
    """The same as a graph."""
    _traced(api, lambda rows: vmap(torch.dot)(rows, rows + 1), torch.randn(3, 4))


@tour
def vmap_of_a_gradient(api: Any) -> None:
    """Gradients of a loss for each example."""

    def body(weights: torch.Tensor, examples: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        def loss(weights: torch.Tensor, example: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return ((example.dot(weights).relu() - target) ** 2).mean()

        return vmap(grad(loss), in_dims=(None, 0, 0))(weights, examples, targets)

    _both(api, body, torch.randn(3), torch.randn(5, 3), torch.randn(5))


@tour
def a_vector_jacobian_product(api: Any) -> None:
    """vjp gives a value and a function of a cotangent."""

    def body(x: torch.Tensor, y: torch.Tensor) -> Any:
        value, pull, *_ = vjp(lambda a, b: a.sin() * b, x, y)
        return value, pull(torch.ones_like(value))

    _both(api, body, torch.randn(3), torch.randn(3))


@tour
def a_jacobian_vector_product(api: Any) -> None:
    """jvp with two tangents."""

    def body(x: torch.Tensor, y: torch.Tensor) -> Any:
        return jvp(lambda a, b: a * b.cos(), (x, y), (torch.ones_like(x), y))

    _both(api, body, torch.randn(3), torch.randn(3))


@tour
def jacobians_backward_and_forward(api: Any) -> None:
    """jacrev, jacfwd, and a vmapped jacrev."""

    def body(x: torch.Tensor, batch: torch.Tensor) -> Any:
        return jacrev(torch.sin)(x), jacfwd(torch.cos)(x), vmap(jacrev(torch.tan))(batch)

    _both(api, body, torch.randn(4), torch.randn(2, 3))


@tour
def a_hessian(api: Any) -> None:
    """hessian of a sum of sines."""
    _both(api, lambda x: hessian(lambda v: (v.sin() * v).sum())(x), torch.randn(3))


@limits
def an_output_by_a_side_effect(api: Any) -> None:
    """A tensor handed out of grad through a variable: outputs by return are eager's."""

    def body(x: torch.Tensor) -> Any:
        return grad(lambda v: ((v**2).sum(), v.cos()), has_aux=True)(x)

    _both(api, body, torch.randn(3))


@limits
def an_in_place_write_under_vmap(api: Any) -> None:
    """A write to a batched tensor is allowed; one of a batched tensor to a plain one is refused as in eager mode."""

    def allowed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return vmap(lambda a, b: a.clone().add_(b))(x, y)

    def refused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return vmap(lambda a, b: a.add_(b), in_dims=(None, 0))(x, y)

    _both(api, allowed, torch.ones(3, 2), torch.ones(3, 2))
    with raising(Exception):
        api.compile(refused, backend="eager", fullgraph=True)(torch.ones(2), torch.ones(3, 2))


@limits
def data_dependent_python(api: Any) -> None:
    """A branch on a batched value is refused."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda v: v if bool(v.sum() > 0) else -v)(x)

    with raising(Exception):
        api.compile(body, backend="eager", fullgraph=True)(torch.randn(3, 2))


@limits
def randomness_of_a_batch(api: Any) -> None:
    """randomness="different" draws for each element, "same" once for all."""

    def body(x: torch.Tensor) -> Any:
        def shifted(v: torch.Tensor) -> torch.Tensor:
            return v + torch.randn(())

        return vmap(shifted, randomness="different")(x), vmap(shifted, randomness="same")(x)

    different, same = api.compile(body, backend="aot_eager", fullgraph=True)(torch.zeros(6))
    equal(len(set(different.tolist())), 6)
    equal(len(set(same.tolist())), 1)


def _predict(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, weight, bias).tanh()


@jacobians
def a_jacobian_by_vmap(api: Any) -> None:
    """vmap of a vjp over unit vectors is jacrev."""

    def body(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> Any:
        _, pull, *_ = vjp(functools.partial(_predict, weight, bias), x)
        (by_hand,) = vmap(pull)(torch.eye(3))
        return by_hand, jacrev(_predict, argnums=2)(weight, bias, x)

    _both(api, body, torch.randn(3, 3), torch.randn(3), torch.randn(3))


@jacobians(entry="make_fx")
def a_jacobian_traced(api: Any) -> None:
    """jacrev and jacfwd as graphs."""
    given = (torch.randn(3, 3), torch.randn(3), torch.randn(3))
    _traced(api, lambda *v: jacrev(_predict, argnums=2)(*v), *given)
    _traced(api, lambda *v: jacfwd(_predict, argnums=2)(*v), *given)


@jacobians
def two_hessians(api: Any) -> None:
    """jacfwd of jacrev and hessian agree with eager's."""

    def body(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> Any:
        return jacfwd(jacrev(_predict, argnums=2), argnums=2)(weight, bias, x), hessian(_predict, argnums=2)(
            weight, bias, x
        )

    _both(api, body, torch.randn(2, 2), torch.randn(2), torch.randn(2))


@jacobians
def a_batch_of_jacobians(api: Any) -> None:
    """vmap of jacrev, and of hessian."""

    def body(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> Any:
        in_dims = (None, None, 0)
        return vmap(jacrev(_predict, argnums=2), in_dims)(weight, bias, x), vmap(hessian(_predict, argnums=2), in_dims)(
            weight, bias, x
        )

    _both(api, body, torch.randn(2, 2), torch.randn(2), torch.randn(3, 2))


@jacobians
def a_hessian_vector_product(api: Any) -> None:
    """jvp of grad."""

    def body(x: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
        return jvp(grad(lambda v: v.sin().sum()), (x,), (tangent,))[1]

    _both(api, body, torch.randn(4), torch.randn(4))


class _Classifier(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.out = nn.Linear(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


@per_sample
def gradients_of_each_sample(api: Any) -> None:
    """vmap of grad over functional_call of a convolutional model."""
    module = _Classifier()
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: Any, sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = functional_call(module, parameters, (sample.unsqueeze(0),))
        return nn.functional.cross_entropy(found, target.unsqueeze(0))

    def body(parameters: Any, samples: torch.Tensor, targets: torch.Tensor) -> Any:
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, samples, targets)

    _both(api, body, parameters, torch.randn(3, 1, 4, 4), torch.tensor([0, 3, 1]))


@per_sample(entry="make_fx")
def gradients_of_each_sample_traced(api: Any) -> None:
    """The same as a graph."""
    module = _Classifier()
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: Any, sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = functional_call(module, parameters, (sample.unsqueeze(0),))
        return nn.functional.cross_entropy(found, target.unsqueeze(0))

    _traced(
        api,
        lambda p, x, y: vmap(grad(loss), (None, 0, 0))(p, x, y),
        parameters,
        torch.randn(3, 1, 4, 4),
        torch.tensor([0, 3, 1]),
    )


def _stacked() -> tuple[Any, Any, Any]:
    models = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to("meta")

    def call(parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(base, (parameters, buffers), (x,))

    return {name: value.detach() for name, value in parameters.items()}, buffers, call


@ensembles
def models_as_one(api: Any) -> None:
    """vmap over stacked parameters, with an own batch for each model."""
    parameters, buffers, call = _stacked()
    _both(api, lambda p, b, x: vmap(call)(p, b, x), parameters, buffers, torch.randn(3, 5, 3))


@ensembles
def models_as_one_for_one_batch(api: Any) -> None:
    """The same batch for all models."""
    parameters, buffers, call = _stacked()
    _both(api, lambda p, b, x: vmap(call, in_dims=(0, 0, None))(p, b, x), parameters, buffers, torch.randn(5, 3))


@tangent_kernels
def a_kernel_of_jacobians(api: Any) -> None:
    """Contracted Jacobians of two batches."""
    module = nn.Linear(3, 2)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def single(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(module, parameters, (x.unsqueeze(0),)).squeeze(0)

    def body(parameters: Any, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        one = vmap(jacrev(single), (None, 0))(parameters, x1)
        other = vmap(jacrev(single), (None, 0))(parameters, x2)
        pairs = [(one[name].flatten(2), other[name].flatten(2)) for name in one]
        return torch.stack([torch.einsum("Naf,Mbf->NMab", a, b) for a, b in pairs]).sum(0)

    _both(api, body, parameters, torch.randn(2, 3), torch.randn(4, 3))


@tangent_kernels
def a_kernel_of_products(api: Any) -> None:
    """The same by a product of vjp and jvp."""
    module = nn.Linear(3, 2)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def single(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(module, parameters, (x.unsqueeze(0),)).squeeze(0)

    def body(parameters: Any, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            value, pull, *_ = vjp(lambda p: single(p, a), parameters)

            def product(v: torch.Tensor) -> torch.Tensor:
                return jvp(lambda p: single(p, b), (parameters,), pull(v))[1]

            return vmap(product)(torch.eye(value.numel()))

        return vmap(vmap(kernel, (None, 0)), (0, None))(x1, x2)

    _both(api, body, parameters, torch.randn(2, 3), torch.randn(3, 3))


@reference
def a_gradient_and_its_value(api: Any) -> None:
    """grad_and_value with two arguments."""

    def body(x: torch.Tensor, y: torch.Tensor) -> Any:
        return grad_and_value(lambda a, b: (a * b).sum().exp(), argnums=(0, 1))(x, y)

    _both(api, body, torch.randn(3), torch.randn(3))


@reference
def vmap_of_other_dimensions(api: Any) -> None:
    """in_dims and out_dims, of nested inputs, and in chunks."""

    def body(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = vmap(lambda d: d["a"] * d["b"].sum(), in_dims=({"a": 1, "b": None},), out_dims=1)({"a": x, "b": y})
        return first, vmap(torch.mul, chunk_size=2)(x, x)

    _both(api, body, torch.randn(3, 4), torch.randn(2))


@reference
def a_linear_approximation(api: Any) -> None:
    """linearize gives a function of a tangent."""

    def body(x: torch.Tensor, tangent: torch.Tensor) -> Any:
        value, push = linearize(torch.sin, x)
        return value, push(tangent)

    x, tangent = torch.randn(3), torch.randn(3)
    found = api.compile(body, backend="eager")(x, tangent)
    equal(found[0], x.sin())
    equal(found[1], x.cos() * tangent)


@reference(entry="make_fx")
def writes_are_taken_out(api: Any) -> None:
    """functionalize in make_fx: a graph without writes; the argument has its new value."""

    def body(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.view(-1).add_(1)
        return y * 2

    graph = api.fx.experimental.proxy_tensor.make_fx(api.func.functionalize(body))(torch.zeros(2, 2))
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert not any(name.split(".")[1].endswith("_") for name in names), names
    equal(graph(torch.zeros(2, 2)), torch.full((2, 2), 2.0))


@migrating
def parameters_are_given(api: Any) -> None:
    """functional_call with detached parameters, and its gradients."""
    module = nn.Linear(3, 2)
    parameters = dict(module.named_parameters())

    def body(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(module, {name: value * 2 for name, value in parameters.items()}, (x,))

    compiled = api.compile(body, backend="aot_eager", fullgraph=True)
    x = leaf(2, 3)
    equal(compiled(parameters, x), body(parameters, x))
    expected = torch.autograd.grad(body(parameters, x).sum(), [x, module.weight])
    for one, other in zip(
        torch.autograd.grad(compiled(parameters, x).sum(), [x, module.weight]), expected, strict=True
    ):
        equal(one, other)
