"""Gradients of operators that take functions: right, or refused."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import pytest
import torch

import refimpl
from refimpl._torch import hop_map as torch_map
from refimpl._torch import hop_scan, hop_while_loop
from refimpl.errors import MismatchedBranches, UnsupportedByRefimpl
from refimpl.tests.graphs import targets_of

MODES = ("real", "fake", "symbolic")


class Pair(NamedTuple):
    a: torch.Tensor
    b: dict[str, list[torch.Tensor]]


Tensor = torch.Tensor
hop = torch.ops.higher_order
hop_map: Any = torch_map


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_a_cond_is_a_cond_of_the_branches_gradients(mode: str) -> None:
    """Operands and tensors that the branches close over get gradients: `x` is an operand, and `scale` depends on it."""

    def program(p: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        scale = (x * w).exp()
        y, z = torch.cond(p, lambda a: (a.sin() * scale, a * 2), lambda a: (a.cos(), w * 3), (x,))
        return (y, *torch.autograd.grad((y.sum() + (z * z).sum()), (x, w)))

    def eagerly(p: bool, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        scale = (x * w).exp()
        y, z = (x.sin() * scale, x * 2) if p else (x.cos(), w * 3)
        found = torch.autograd.grad((y.sum() + (z * z).sum()), (x, w), materialize_grads=True)
        return (y.detach(), *found)

    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), *inputs)
    assert targets_of(graph_module).count(hop.cond) == 2
    for p in (True, False):
        x, w = (torch.randn(3 if mode != "symbolic" else 5, 4) for _ in range(2))
        torch.testing.assert_close(graph_module(torch.tensor(p), x, w), eagerly(p, x, w))


@pytest.mark.parametrize("mode", MODES)
def test_without_gradients_a_cond_is_traced_once(mode: str) -> None:
    traced: list[int] = []

    def branch(a: Tensor) -> Tensor:
        traced.append(1)
        return a.sin()

    graph_module = refimpl.make_fx(lambda p, x: torch.cond(p, branch, branch, (x,)), tracing_mode=mode)(
        torch.tensor(True), torch.randn(3)
    )
    assert len(traced) == 2
    assert targets_of(graph_module) == [hop.cond, operator.getitem]


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_with_a_cond_of_one_tensor_has_eagers_gradients_when_it_runs(mode: str) -> None:
    """Branches return tuples: torch's backward of the operator fails on a graph that returns a tensor."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin() * w, lambda a: a + w, (x,))

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3), torch.ones(3))
    for sign in (1.0, -1.0):
        x, w = torch.full((3,), sign, requires_grad=True), torch.arange(3.0, requires_grad=True)
        found = torch.autograd.grad(graph_module(x, w).sum(), (x, w))
        torch.testing.assert_close(found, torch.autograd.grad(program(x, w).sum(), (x, w)))


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_with_a_cond_of_containers_has_eagers_gradients_when_it_runs(mode: str) -> None:
    """The operator returns a flat tuple: autograd gives no gradients to tensors in containers within it."""

    def program(x: Tensor) -> list[Tensor]:
        found = torch.cond(
            x.sum() > 0, lambda a: Pair(a.sin(), {"k": [a * 2]}), lambda a: Pair(a + 1, {"k": [a * 3]}), (x,)
        )
        return [found.a, found.b["k"][0]]

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3))
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign, requires_grad=True)
        for found, expected in zip(graph_module(x), program(x), strict=True):
            gradients = [torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (found, expected)]
            torch.testing.assert_close(*gradients)


def test_a_tensor_and_a_tuple_of_one_do_not_match() -> None:
    with pytest.raises(MismatchedBranches, match="the true branch has one value, the false branch has a container"):
        refimpl.make_fx(lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: (a - 1,), (x,)))(torch.ones(3))


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * 2


def test_a_gradient_that_a_cond_would_lose_is_refused() -> None:
    def program(p: Tensor, x: Tensor) -> Any:
        y = x.exp()
        z = torch.cond(p, lambda a: a * _Double.apply(y), lambda a: a.cos(), (x,))
        return torch.autograd.grad(z.sum(), x)

    with pytest.raises(UnsupportedByRefimpl, match="pass the tensor as an operand"):
        refimpl.make_fx(program)(torch.tensor(True), torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("writes_to", ["an operand", "a closure"])
def test_a_write_after_the_call_is_refused_as_by_autograd(writes_to: str) -> None:
    """The backward of the operator runs the branch again, on what is in its tensors then."""

    def program(x: Tensor) -> Any:
        y, c = x * 2, x.detach() * 2
        z = torch.cond(x.sum() > 0, lambda a: a * a * c, lambda a: a + c, (y,))
        (y if writes_to == "an operand" else c).mul_(3)
        return torch.autograd.grad(z.sum(), x)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        refimpl.make_fx(program)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("mode", MODES)
def test_the_forward_call_of_a_cond_on_tensors_that_require_gradients(mode: str) -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda a: a.sin(), lambda a: a.cos(), (x,))

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.randn(3, requires_grad=True))
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(torch.tensor(True), x), x.sin())
    torch.testing.assert_close(graph_module(torch.tensor(False), x), x.cos())


# ------------------------------------------------------------------------------------------------------- random numbers


def _dropped(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x * 2, 0.5)


def _noisy(x: Tensor) -> Tensor:
    return x * torch.rand_like(x) * torch.empty_like(x).bernoulli_(0.7)


def _in_a_loop(x: Tensor) -> Any:
    return hop_while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, _noisy(a)), (torch.tensor(0), x))[1]


def _within(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 40, _dropped, _noisy, (x,))


DRAWING: dict[str, Any] = {
    "one branch": lambda x: torch.cond(x.sum() > 0, _dropped, lambda a: a * 3, (x,)),
    "two branches": lambda x: torch.cond(x.sum() < 0, _dropped, _noisy, (x,)),
    "map": lambda x: hop_map(lambda row: _noisy(_dropped(row)), x),
    "while_loop": _in_a_loop,
    "cond in cond": lambda x: torch.cond(x.sum() > 0, _within, lambda a: a * 3, (x,)),
    "cond in map": lambda x: hop_map(_within, x),
    "cond in while_loop": lambda x: hop_while_loop(
        lambda i, a: i < 2, lambda i, a: (i + 1, torch.cond(i < 1, _dropped, _noisy, (a,))), (torch.tensor(0), x)
    )[1],
    "map in while_loop": lambda x: hop_while_loop(
        lambda i, a: i < 2, lambda i, a: (i + 1, hop_map(_noisy, a)), (torch.tensor(0), x)
    )[1],
    "scan in cond": lambda x: torch.cond(
        x.sum() > 0, lambda a: hop_scan(lambda c, row: (c * 1, _noisy(row)), a[0] * 1, a)[1], lambda a: a * 3, (x,)
    ),
    "cond in map in cond": lambda x: torch.cond(x.sum() > 0, lambda a: hop_map(_within, a), lambda a: a * 3, (x,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DRAWING)
def test_a_backward_uses_the_numbers_that_the_forward_drew(name: str, dynamic: bool) -> None:
    """Each element of the result is a random factor times that of `x`. torch's rules draw again for the backward."""
    compiled = refimpl.compile_aot(DRAWING[name], dynamic=dynamic)
    for size in (4, 6):
        x = torch.linspace(1, 2, size * 3).view(size, 3).requires_grad_()
        torch.manual_seed(size)
        result = compiled(x)
        (factors,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(result, factors * x)
        assert factors.unique().numel() > 1


@pytest.mark.parametrize("name", ["cond in cond", "cond in while_loop", "scan in cond"])
def test_a_captured_program_uses_the_numbers_that_it_drew(name: str) -> None:
    compiled = refimpl.compile(DRAWING[name], backend="aot_eager", fullgraph=True)
    x = torch.linspace(1, 2, 12).view(4, 3).requires_grad_()
    result = compiled(x)
    (factors,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(result, factors * x)


def test_numbers_drawn_by_a_loop_within_a_branch_are_refused_with_gradients() -> None:
    """How many numbers there are is known when the loop has run."""

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, _in_a_loop, torch.sin, (x,))

    with pytest.raises(
        UnsupportedByRefimpl, match="random operator in a function of while_loop_stack_output, within a"
    ):
        refimpl.compile_aot(program)(torch.ones(2, 3, requires_grad=True))


def test_the_gradient_of_a_branch_is_no_lazy_conjugate() -> None:
    def program(x: Tensor) -> Tensor:
        z = torch.complex(x, x * 2)
        return torch.view_as_real(torch.cond(x.sum() > 0, lambda a: a * a, lambda a: a.conj() * 1, (z,)))

    x = torch.full((3,), -1.0, requires_grad=True)
    (found,) = torch.autograd.grad(refimpl.compile_aot(program)(x).sum(), x)
    torch.testing.assert_close(found, torch.full((3,), -1.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loop_with_gradients_that_carries_an_int_is_refused_by_name(dynamic: bool) -> None:
    def program(x: Tensor) -> Any:
        return hop_while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 + i), (0, x))[1]

    with pytest.raises(UnsupportedByRefimpl, match="a while_loop with gradients that carries an int"):
        refimpl.compile_aot(program, dynamic=dynamic)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("name", ["cond", "nested cond", "map", "while_loop"])
def test_a_module_in_a_function_has_gradients_of_its_parameters(name: str) -> None:
    """The parameters are no inputs of the trace, so that it has to make them operands of the operator."""
    module = torch.nn.Linear(4, 4)

    def branch(x: Tensor) -> Tensor:
        return module(x).sin()

    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > -1e9, branch, torch.clone, (x,))

    def program(x: Tensor) -> Any:
        match name:
            case "cond" | "nested cond":
                found = torch.cond(x.sum() > -1e9, branch if name == "cond" else inner, torch.clone, (x,))
            case "map":
                found = hop_map(branch, x)
            case _:
                found = hop_while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, branch(x)), (torch.tensor(0), x))[1]
        return torch.autograd.grad(found.sum(), tuple(module.parameters()))

    x = torch.randn(3, 4)
    graph_module = refimpl.make_fx(program)(x)
    expected = torch.autograd.grad(branch(x).sum(), tuple(module.parameters()))
    torch.testing.assert_close(graph_module(x), expected)
