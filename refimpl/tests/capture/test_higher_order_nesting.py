"""Tests of operators that take functions, checkpoints and autograd.Function in one another, in loops and modules."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl._torch import hop_map
from refimpl._torch import hop_scan as scan
from refimpl._torch import hop_while_loop as while_loop
from refimpl.tests.capture.capturing import assert_agrees_at, captured_with, each_of

map_over: Any = hop_map


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, by: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * ctx.by + 0 * x + 1, None


class Recomputed(torch.autograd.Function):
    """Its forward branches and checkpoints, and its backward branches."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = torch.cond(x.sum() > 0, torch.sin, lambda z: z * 3, (x,))
        ctx.save_for_backward(x, y)
        return checkpoint(torch.exp, y, use_reentrant=False)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, y = ctx.saved_tensors
        return torch.cond(x.sum() > 0, lambda g: g * 2 + y, lambda g: g - x, (gradient,))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.calls: list[int] = []

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        self.calls = [*self.calls, len(self.calls)]
        for scale in (1.0, 2.0):
            y = Tripled.apply(y, scale)
        return y


def function_in_checkpoint(x: Any) -> Any:
    return checkpoint(lambda y: Tripled.apply(y.sin(), 3.0).cos(), x, use_reentrant=False)


def checkpoint_in_cond(x: Any) -> Any:
    def sure(y: Any) -> Any:
        return checkpoint(lambda z: z.sin().exp(), y, use_reentrant=False)

    return torch.cond(x.sum() > 0, sure, lambda y: y.cos(), (x,))


def function_in_cond(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: Tripled.apply(y, 2.0), lambda y: y * 5, (x,))


def cond_in_checkpoint(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)) * x

    return checkpoint(inner, x * 2, use_reentrant=False)


def all_in_function(x: Any) -> Any:
    return Recomputed.apply(x * 2)


def function_of_map(x: Any) -> Any:
    first = x[0] * 2
    return Tripled.apply(map_over(lambda y: y.sin() * first, x), 2.0)


def in_loop(x: Any) -> Any:
    found = []
    for by in range(3):
        x = Tripled.apply(x, float(by + 1))
        found.append(checkpoint(torch.sin, x, use_reentrant=False))
    return found, {"last": x}


def in_generator(x: Any) -> Any:
    def parts() -> Any:
        for by in (2.0, 3.0):
            yield Tripled.apply(x, by)

    return sum(checkpoint(lambda: list(parts()), use_reentrant=False))


def with_effects_around(x: Any) -> Any:
    state = {"count": 0}
    y = checkpoint(lambda z: z.sin() * state["count"], x, use_reentrant=False)
    state["count"] += 1
    z = checkpoint(lambda z: z.sin() * state["count"], x, use_reentrant=False)
    return y + z, state


def breaking_between(x: Any) -> Any:
    y = Tripled.apply(x, 2.0)
    torch._dynamo.graph_break()
    return checkpoint(torch.sin, y, use_reentrant=False)


PROGRAMS: list[Callable[..., Any]] = [
    function_in_checkpoint, checkpoint_in_cond, function_in_cond, cond_in_checkpoint, all_in_function, function_of_map, in_loop,
    in_generator, with_effects_around, breaking_between,
]  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_of(*PROGRAMS)
def test_values_and_gradients_are_those_of_eager(program: Callable[..., Any], backend: str) -> None:
    is_whole = program is not breaking_between
    captured = refimpl.compile(program, backend=backend, fullgraph=is_whole)
    calls = map(torch.tensor, ([0.3, 0.2, 0.5], [-0.3, 0.2, -0.5], [0.1, -0.2, 0.3]))
    assert_agrees_at(program, captured, *calls, is_exact=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_in_a_scan_keeps_its_backward(backend: str) -> None:
    """The initial carry requires no gradient, but later ones do. (torch's own scan derives the operators of forward instead.)"""

    def looped(x: Any) -> Any:
        carry = torch.ones(2)
        for row in x:
            carry = Tripled.apply(carry, 3.0) * row
        return carry

    captured = refimpl.compile(
        lambda x: scan(lambda carry, row: (Tripled.apply(carry, 3.0) * row, row * 1), torch.ones(2), x)[0],
        backend=backend, fullgraph=True,
    )  # fmt: skip
    found = []
    for function in (captured, looped):
        x = torch.linspace(0.5, 2.0, 6).view(3, 2).requires_grad_()
        y = function(x)
        found.append((y, torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*found)


def thrice(x: Any, step: Callable[[Any], Any]) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, step(a)), (torch.tensor(0), x))[1]


def looped(x: Any) -> Any:
    weight = x[0].exp()
    return thrice(x, lambda a: a.sin() * weight)


def function_in_loop(x: Any) -> Any:
    return thrice(x, lambda a: Tripled.apply(a, 0.5))


def map_of_loop(x: Any) -> Any:
    scale = x.mean()
    return map_over(lambda row: thrice(row, lambda a: Tripled.apply(a, 0.5) * scale), x)


def cond_of_loop(x: Any) -> Any:
    return torch.cond(x.sum() > -99, lambda a: thrice(a, torch.sin), torch.cos, (x,))


def _repeat(x: Any, step: Callable[[Any], Any]) -> Any:
    return step(step(step(x)))


LOOPS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (looped, lambda x: _repeat(x, lambda a: a.sin() * x[0].exp())),
    (function_in_loop, lambda x: _repeat(x, lambda a: Tripled.apply(a, 0.5))),
    (map_of_loop, lambda x: _repeat(x, lambda a: torch.stack([Tripled.apply(row, 0.5) for row in a]) * x.mean())),
    (cond_of_loop, lambda x: _repeat(x, torch.sin)),
]


@pytest.mark.parametrize(("program", "expected"), LOOPS, ids=lambda value: value.__name__)
def test_gradients_of_loops_at_two_sizes(program: Callable[..., Any], expected: Callable[..., Any]) -> None:
    """The second size makes the sizes of the graph symbols. torch's rules for the gradients cannot be traced with these."""
    captured = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    assert_agrees_at(expected, captured, *(torch.rand(size, 2) for size in (2, 3, 4)), is_exact=False)


def test_a_carried_constant_is_no_constant_of_later_rounds() -> None:
    def summed(x: Any) -> Any:
        return while_loop(
            lambda i, a: i < 4, lambda i, a: (i + 1, a + x.select(0, i.item())), (torch.tensor(0), x[0] * 0)
        )

    x = torch.arange(4.0)
    assert refimpl.compile(summed, fullgraph=True)(x)[1] == x.sum()


def test_a_scan_may_return_its_carry_in_other_containers() -> None:
    x = torch.arange(6.0).view(2, 3)
    captured = refimpl.compile(lambda x: scan(lambda c, r: ((c + r,), r * 2), x[0] * 0, x), fullgraph=True)
    torch.testing.assert_close(captured(x), ((x.sum(0),), x * 2))


def test_a_predicate_that_is_no_condition_raises_as_in_eager() -> None:
    wrong: Any
    for wrong in ("yes", None, [True]):
        with pytest.raises(RuntimeError):
            refimpl.compile(lambda x, p=wrong: torch.cond(p, torch.sin, torch.cos, (x,)))(torch.ones(2))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_module_that_keeps_count(backend: str) -> None:
    torch.manual_seed(0)
    blocks = [Block(), Block()]
    blocks[1].load_state_dict(blocks[0].state_dict())
    captured = refimpl.compile(blocks[1], backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3)
        results = [run(x) for run in (blocks[0], captured)]
        for result in results:
            result.sum().backward()
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(block.linear.weight.grad for block in blocks))
        assert blocks[0].calls == blocks[1].calls


def test_the_graph_prints_as_python_with_lines_of_the_program() -> None:
    captured, recorder, _ = captured_with(all_in_function, fullgraph=True)
    captured(torch.ones(3, requires_grad=True))
    (graph,) = recorder.graphs
    body = graph.get_submodule("fwd_body_0")
    assert "torch.ops.higher_order.cond" in body.code  # pyright: ignore[reportOperatorIssue]
    nodes = [node for node in body.graph.nodes if node.op == "call_function"]  # pyright: ignore
    assert any("in forward" in node.meta.get("stack_trace", "") for node in nodes)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_branches_may_return_a_size_of_an_operand(backend: str) -> None:
    def program(x: Any) -> Any:
        count, y = torch.cond(x.sum() > 0, lambda a: (a.shape[0], a * 2), lambda a: (a.shape[0], a * 3), (x,))
        return y * count

    captured = refimpl.compile(program, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 5):
        torch.testing.assert_close(captured(torch.ones(size)), torch.full((size,), 2.0 * size))


def test_vmap_in_a_branch_maps_a_symbolic_number_of_slices() -> None:
    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: torch.vmap(lambda row: row * row.sum())(a), lambda a: a * 1, (x,))

    captured = refimpl.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 5):
        x = torch.ones(size, 2)
        torch.testing.assert_close(captured(x), x * 2)


def test_nodes_of_nested_functions_say_which_operators_they_are_in() -> None:
    def chosen(y: Any) -> Any:
        return torch.cond(y.sum() > 3, torch.sin, torch.cos, (y,)) + 1

    module = _graph_of(lambda x: torch.cond(x.sum() > 0, chosen, lambda y: y * 2, (x,)), torch.ones(2))
    names = [name for name, _ in module.named_modules()]
    assert {*names} == {"", "cond_true_1", "cond_false_1", "cond_true_1.cond_true_0", "cond_true_1.cond_false_0"}
    stacks = {
        (name, node.name): [each for each, _ in node.meta["source_fn_stack"]]
        for name, body in module.named_modules()
        for node in body.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    }
    assert stacks["", "cond"] == ["cond"]
    assert stacks["cond_true_1", "add"] == ["cond", "add"]
    assert stacks["cond_true_1.cond_true_0", "sin"] == ["cond", "cond", "sin"]
    assert stacks["cond_false_1", "mul"] == ["cond", "mul"]


def _graph_of(program: Callable[..., Any], *args: Any) -> Any:
    found: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    torch.testing.assert_close(refimpl.compile(program, backend=keep, fullgraph=True)(*args), program(*args))
    return found[0]
