"""Tests of operators that take functions in captured code: they are nodes, with graphs of the functions."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import refimpl
from refimpl._torch import hop_map
from refimpl._torch import hop_scan as scan
from refimpl._torch import hop_while_loop as while_loop
from refimpl.capture.public.errors import TorchRuntimeError, Unsupported
from refimpl.tests.capture.capturing import (
    IN_EVERY_MODE,
    MODES,
    assert_agrees_at,
    assert_same_as_eager,
    captured_with,
    each_of,
    same,
)

cond: Any = torch.cond
map_over: Any = hop_map
WEIGHT = torch.tensor([0.5, -1.5, 2.0])


def chosen(x: Any) -> Any:
    return cond(x.sum() > 0, lambda y: torch.sin(y), lambda y: y * 2, (x,))


def closing_over(x: Any) -> Any:
    scale, offset = 3, x * 2

    def positive(y: Any) -> Any:
        return {"a": y * scale + offset, "b": (y - WEIGHT, 7)}

    def negative(y: Any) -> Any:
        return {"a": offset.cos(), "b": (y * offset, 7)}

    found = cond(x.sum() > 0, positive, negative, [x + 1])
    return found["a"] * 2, found["b"]


def nested(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return cond(y[0] > 0.2, lambda z: z + x, lambda z: z * WEIGHT, (y,))

    return cond(x.sum() > 0, inner, lambda y: inner(y * 2) - 1, (x,))


def known(x: Any) -> Any:
    flags = []

    def counted(y: Any) -> Any:
        flags.append(1)
        return y + 1

    return cond(x.dim() == 1, counted, lambda y: y, (x,)), flags


def sized(x: Any) -> Any:
    return cond(x.shape[0] > 3, lambda y: y + 1, lambda y: y - 1, (x,))


def mapped(x: Any) -> Any:
    z = x * 2  # torch refuses operands that share memory
    return map_over(lambda y, by: (y * by[0] + z.sum()).tanh(), x, x + 1)


def mapped_trees(x: Any) -> Any:
    found = map_over(lambda pair: [pair["a"] * 2, (pair["b"] - WEIGHT[0],)], {"a": x, "b": x.exp()})
    return found[0], found[1][0]


def mapped_cond(x: Any) -> Any:
    return map_over(lambda y: cond(y > 0, torch.sin, torch.cos, (y,)), x)


def looped(x: Any) -> Any:
    offset = x.sum()
    return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5 + offset * WEIGHT[0]), (torch.tensor(0), x))


def looped_trees(x: Any) -> Any:
    def step(state: Any) -> Any:
        return ({"i": state["i"] + 1, "y": state["y"].sin()},)

    (state,) = while_loop(lambda state: state["i"].sum() < x.shape[0], step, ({"i": torch.zeros(1), "y": x},))
    return state["y"], state["i"]


def looped_alone(x: Any) -> Any:
    return while_loop(lambda y: y.sum() < 9, lambda y: y * y + 1 + WEIGHT, (x,))


def scanned(x: Any) -> Any:
    def step(carry: Any, element: Any) -> Any:
        total = carry + element * WEIGHT[1]
        return total, total * x.mean()

    return scan(step, torch.zeros(()), x)


def scanned_back(x: Any) -> Any:
    pairs = torch.stack([x, x * 2, x * 3])

    def step(carry: Any, element: Any) -> Any:
        total = carry["a"] * 0.5 + element[0]
        return {"a": total}, [total + 1, element[0].sum()]

    carry, (first, second) = scan(step, {"a": torch.ones(3)}, (pairs,), dim=-1, reverse=True)
    return carry["a"], first, second


def of_other_shape(x: Any) -> Any:
    y = cond(x.sum() > 0, lambda y: y + 1, lambda y: y[:2] - 1, (x,))
    return y * 2, (y.shape[0], y.sum())


def of_other_number(x: Any) -> Any:
    count, y = cond(x.sum() > 0, lambda y: (2, y + y.shape[0]), lambda y: (7, y - 1), (x,))
    return y * count, count


def carrying_numbers(x: Any) -> Any:
    count, size, y = while_loop(
        lambda i, n, y: i < 4, lambda i, n, y: (i + 1, n, y + i * n), (1, x.shape[0], x)
    )  # fmt: skip
    return y * count, size


def plain_cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def plain_map(function: Any, xs: Any, *args: Any) -> Any:
    leaves, tree = tree_flatten(xs)
    parts = [function(tree_unflatten(list(slices), tree), *args) for slices in zip(*leaves, strict=True)]
    trees = [tree_flatten(part) for part in parts]
    return tree_unflatten([torch.stack(same) for same in zip(*(found for found, _ in trees), strict=True)], trees[0][1])


def plain_while_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    is_alone = False
    while cond_fn(*carried):
        found = body_fn(*carried)
        is_alone = isinstance(found, torch.Tensor)
        carried = (found,) if is_alone else found
    return carried[0] if is_alone else carried


def plain_scan(step: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, tree = tree_flatten(xs)
    dim %= leaves[0].dim()
    outs = []
    for index in range(leaves[0].shape[dim])[:: -1 if reverse else 1]:
        init, out = step(init, tree_unflatten([leaf.select(dim, index) for leaf in leaves], tree))
        outs.append(out)
    found = [tree_flatten(out) for out in (outs[::-1] if reverse else outs)]
    stacked = [torch.stack(same) for same in zip(*(parts for parts, _ in found), strict=True)]
    stacked = [out.movedim(0, dim) if dim < out.dim() else out for out in stacked]
    return init, tree_unflatten(stacked, found[0][1])


def plain(program: Callable[..., Any]) -> Any:
    """The program with operators that are loops and branches of Python: torch's own are what its compiler makes of them."""
    names = {"cond": plain_cond, "map_over": plain_map, "while_loop": plain_while_loop, "scan": plain_scan}
    return FunctionType(program.__code__, {**program.__globals__, **names})


DIFFERENTIATED: list[Callable[..., Any]] = [
    chosen, closing_over, nested, mapped, mapped_trees, mapped_cond, looped, looped_trees, looped_alone, scanned,
    scanned_back,
]  # fmt: skip
PROGRAMS: list[Callable[..., Any]] = [*DIFFERENTIATED, sized, of_other_shape, of_other_number, carrying_numbers]


VALUES = ("structure", "results", "arguments", "flags", "random_state")


def inputs() -> list[torch.Tensor]:
    return [torch.tensor([0.3, 0.5, 0.7]), torch.tensor([-0.3, 0.5, -0.7]), torch.tensor([0.1, -0.4, 0.7])]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(*PROGRAMS)
def test_values_are_those_of_eager(program: Callable[..., Any], mode: str) -> None:
    captured, recorder, options = captured_with(program, breaks_at=MODES[mode], fullgraph=MODES[mode] is None)
    assert_agrees_at(plain(program), captured, *inputs(), requires_grad=False, parts=VALUES)
    if MODES[mode] is None:
        assert not options.breaks
        assert len(recorder.graphs) == 1


@each_of(*PROGRAMS)
def test_values_are_those_of_eager_behind_aot_autograd(program: Callable[..., Any]) -> None:
    captured = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    assert_agrees_at(plain(program), captured, *inputs(), requires_grad=False, parts=VALUES, is_exact=False)


@pytest.mark.fractional
@pytest.mark.parametrize("differentiates", [False, True])
@each_of(*DIFFERENTIATED)
def test_a_graph_that_has_them_is_captured_again(program: Callable[..., Any], differentiates: bool) -> None:
    first, recorder, _ = captured_with(program, fullgraph=True)
    first(inputs()[0].requires_grad_(differentiates))
    (graph,) = recorder.graphs
    names = [node.target for node in graph.graph.nodes if node.op == "placeholder"]
    rest = [WEIGHT] if len(names) > 1 else []
    again, recorder, _ = captured_with(lambda x: graph(x, *rest), fullgraph=True)
    assert_agrees_at(lambda x: graph(x, *rest), again, *inputs(), requires_grad=differentiates)
    assert [*_operators(recorder.graphs[0])] == [*_operators(graph)]


def _operators(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if str(node.target) in ("cond", "map_impl", "while_loop", "scan")]


@pytest.mark.fractional
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_of(*DIFFERENTIATED)
def test_gradients_are_those_of_eager(program: Callable[..., Any], backend: str) -> None:
    captured = refimpl.compile(program, backend=backend, fullgraph=True)
    for x in inputs():  # operators say of all results that they require a gradient
        assert_agrees_at(plain(program), captured, x, parts=("structure", "results"), is_exact=False)
        try:
            assert_agrees_at(plain(program), captured, x, parts=("gradients", "refusals"), is_exact=False)
        except AssertionError:
            # The graph's operator is torch's, and before 2.13 its scan loses what later steps give to a carry.
            if backend != "eager":
                raise
            assert_agrees_at(program, captured, x, parts=("gradients", "refusals"), is_exact=False)


@each_of(*PROGRAMS)
def test_they_are_nodes(program: Callable[..., Any]) -> None:
    captured, recorder, _ = captured_with(program, fullgraph=True)
    captured(inputs()[0])
    names = {
        "carrying_numbers": "while_loop",
        "of_other_shape": "cond",
        "of_other_number": "cond",
        "chosen": "cond",
        "closing_over": "cond",
        "nested": "cond",
        "sized": "sub",
    }
    expected = names.get(program.__name__) or {"m": "map_impl", "l": "while_loop", "s": "scan"}[program.__name__[0]]
    assert expected in recorder.targets


@each_of(chosen, nested)
def test_torch_cond_gives_what_it_gives_itself(program: Callable[..., Any]) -> None:
    captured, _, _ = captured_with(program, fullgraph=True)
    assert_agrees_at(program, captured, *inputs())


def test_all_results_of_torch_cond_have_gradients_where_an_operand_has() -> None:
    def program(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda z: z * 2, lambda z: torch.zeros(3), (x,))
        return y, y.requires_grad

    captured, _, _ = captured_with(program, fullgraph=True)
    for x in inputs():
        y, says = captured(x.clone().requires_grad_())
        assert y.requires_grad is says is torch.cond(
            x.sum() > 0, lambda z: z * 2, lambda z: torch.zeros(3), (x.clone().requires_grad_(),)
        ).requires_grad  # fmt: skip


def test_a_known_condition_is_a_branch_of_python() -> None:
    recorder = assert_same_as_eager(known, calls=[(inputs()[0],)], fullgraph=True)
    assert recorder.targets == ["add"]


def test_a_condition_on_a_size_that_varies_stays_in_the_graph() -> None:
    calls = [(torch.ones(size),) for size in (5, 6, 7, 3, 2)]
    assert_same_as_eager(sized, calls=calls, is_whole=True, graphs=2, fullgraph=True)


def test_what_functions_close_over_is_guarded() -> None:
    scale = 2

    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y * scale, lambda y: y - scale, (x,))

    captured, recorder, _ = captured_with(program, fullgraph=True)
    for scale in (2, 3, 2):
        for x in inputs():
            assert same(captured(x), x * scale if x.sum() > 0 else x - scale)
    assert len(recorder.graphs) == 2


def test_modules_and_buffers_are_operands() -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.register_buffer("offset", torch.arange(3.0))

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, self.first, lambda y: self.second(y) + self.offset, (x,))

    torch.manual_seed(0)
    module = Gated()
    for backend in ("eager", "aot_eager"):
        captured = refimpl.compile(module, backend=backend, fullgraph=True)
        for x in inputs():
            expected = module.first(x) if x.sum() > 0 else module.second(x) + module.offset
            expected.sum().backward()
            wanted = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
            module.zero_grad()
            result = captured(x)
            assert torch.equal(result, expected)
            result.sum().backward()
            for parameter, gradient in zip(module.parameters(), wanted, strict=True):
                found = parameter.grad
                assert found is not None
                assert torch.equal(found, torch.zeros_like(parameter) if gradient is None else gradient)
            module.zero_grad()


def test_symbolic_sizes_are_operands() -> None:
    def program(x: Any) -> Any:
        size = x.shape[0]
        return torch.cond(x.sum() > 0, lambda y: y * size, lambda y: y + size, (x,))

    captured, recorder, _ = captured_with(program, fullgraph=True)
    for size in (3, 4, 5, 6):
        for sign in (1, -1):
            x = torch.full((size,), 0.5) * sign
            assert same(captured(x), x * size if sign > 0 else x + size)
    assert len(recorder.graphs) == 2


LOG: list[Any] = []
COUNTER = torch.zeros(3)
PARAMETER = torch.ones(3, requires_grad=True)


def appending(x: Any) -> Any:
    def positive(y: Any) -> Any:
        LOG.append("positive")
        return y + 1

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,))


def appending_to_local(x: Any) -> Any:
    seen = [x]

    def positive(y: Any) -> Any:
        seen.append(y)
        return y + 1

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,)), len(seen)


def assigning(x: Any) -> Any:
    count = 0

    def positive(y: Any) -> Any:
        nonlocal count
        count += 1
        return y + 1

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,)), count


def writing(x: Any) -> Any:
    def positive(y: Any) -> Any:
        COUNTER.add_(1)
        return y + 1

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,))


def writing_to_operand(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.add_(1) * 2, lambda y: y - 1, (x * 1,))


def giving_its_operand(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y, lambda y: y - 1, (x,))


def giving_a_view(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y.view(-1), (x,))


def of_other_dtype(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.double(), lambda y: y - 1, (x,))


def of_other_shape_with_gradient(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y * PARAMETER, lambda y: y[:2] * 3, (x,))


def of_other_rank(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y[0] - 1, (x,))


def of_tensor_or_number(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: 1, (x,))


def of_other_tree(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: [y + 1], lambda y: (y - 1,), (x,))


def carrying_other_shape(x: Any) -> Any:
    return while_loop(lambda y: y.sum() < 5, lambda y: (torch.cat([y, y]),), (x,))


def of_no_condition(x: Any) -> Any:
    return while_loop(lambda y: y, lambda y: (y + 1,), (x,))


def breaking(x: Any) -> Any:
    def positive(y: Any) -> Any:
        return y * y.sum().item()

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,))


def raising(x: Any) -> Any:
    def positive(y: Any) -> Any:
        raise ValueError(y)

    return torch.cond(x.sum() > 0, positive, lambda y: y - 1, (x,))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (appending, "effect_in_branch"),
        (appending_to_local, "effect_in_branch"),
        (assigning, "effect_in_branch"),
        (writing, "operator_mutates"),
        (writing_to_operand, "operator_mutates"),
        (giving_its_operand, "operator_aliases"),
        (giving_a_view, "operator_aliases"),
        (of_other_dtype, "op_raises_on_fake"),
        (of_other_tree, "op_raises_on_fake"),
        (carrying_other_shape, "unsupported_operation"),
        (of_other_shape_with_gradient, "unsupported_operation"),
        (of_other_rank, "unsupported_operation"),
        (of_tensor_or_number, "unsupported_operation"),
        (of_no_condition, "op_raises_on_fake"),
        (raising, "exception_leaves"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_what_is_no_node_ends_the_segment(program: Callable[..., Any], reason: str) -> None:
    captured, _, _ = captured_with(program, fullgraph=True)
    with pytest.raises((Unsupported, TorchRuntimeError)) as refused:
        captured(inputs()[0])
    assert f"({reason})" in str(refused.value)
    assert program.__name__ in str(refused.value)  # the user's line


@each_of(appending, writing, giving_its_operand, of_other_rank, breaking)
def test_without_fullgraph_eager_says_what_it_says(program: Callable[..., Any]) -> None:
    captured, _, options = captured_with(program)
    found = []
    for function in (program, captured):
        for x in inputs():
            try:
                found.append(function(x))
            except Exception as error:
                found.append(type(error).__name__)
    assert same(found[:3], found[3:])
    assert options.breaks


def carried_pairs(xs: Any, init: Any) -> Any:
    def step(carry: Any, element: Any) -> Any:
        scale, total = element[0] * carry[0], element[0] * carry[1] + element[1]
        return [scale, total], {"scale": scale.clone(), "total": total - 1}

    return step, [init, init + 1], (xs, xs * 2)


def carried_dicts(xs: Any, init: Any) -> Any:
    def step(carry: Any, element: Any) -> Any:
        total = {name: value + element for name, value in carry.items()}
        return total, (total["a"] * 2,)

    return step, {"a": init, "b": init * 2}, xs


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("given", [carried_pairs, carried_dicts])
def test_scan_itself_is_captured_with_containers_that_it_carries(given: Any, is_reversed: bool) -> None:
    """The source of `scan` hands its operator a function that returns `(carry, outputs)`, each in its own container."""
    step, init, xs = given(torch.randn(4, 3), torch.randn(3))
    captured = refimpl.compile(scan, backend="eager", fullgraph=True)
    found = captured(step, init, xs, dim=0, reverse=is_reversed)
    torch.testing.assert_close(found, plain_scan(step, init, xs, reverse=is_reversed))
