"""Operators that take functions, in all modes: the graph does what the program does, whichever way its data sends it."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.experimental import control_flow
from torch._higher_order_ops import (
    _invoke_quant,
    associative_scan,
    foreach_map,
    hints_wrap,
    run_const_graph,
    scan,
    strict_mode,
    utils,
    while_loop,
    wrap,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import refimpl
from refimpl.errors import MismatchedBranches, NotFunctional, UncapturedHigherOrderOp, UnsupportedByRefimpl
from refimpl.tests.graphs import targets_of
from refimpl.trace.higher_order import HigherOrderCall, Recorded, direct_calls, register_higher_order_rule, rules
from refimpl.trace.tracing import current_trace

# Importing these registers their operators.
REGISTERING = (_invoke_quant, foreach_map, hints_wrap, run_const_graph, strict_mode, wrap)
MODES = ("real", "fake", "symbolic")
hop_map: Any = control_flow.map
Tensor = torch.Tensor
aten = torch.ops.aten
hop = torch.ops.higher_order


def _node(graph_module: torch.fx.GraphModule, target: Any) -> torch.fx.Node:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=target)
    return node


def _child(graph_module: torch.fx.GraphModule, name: str) -> torch.fx.GraphModule:
    child = graph_module.get_submodule(name)
    assert isinstance(child, torch.fx.GraphModule)
    return child


def _sequence(value: Any) -> tuple[Any, ...]:
    return tuple(value)


def _branch(pred: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cond(pred, lambda a: (a.sin(), a + 1), lambda a: (a.cos() * 2, a - 1), (x,))


def _branch_eagerly(pred: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return (x.sin(), x + 1) if pred else (x.cos() * 2, x - 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_cond_takes_either_branch_whichever_it_was_traced_with(mode: str) -> None:
    graph_module = refimpl.make_fx(_branch, tracing_mode=mode)(torch.tensor(True), torch.randn(3, 4))
    assert targets_of(graph_module)[0] is hop.cond
    assert targets_of(_child(graph_module, "true_graph_0")) == [aten.sin.default, aten.add.Tensor]
    assert targets_of(_child(graph_module, "false_graph_0")) == [aten.cos.default, aten.mul.Tensor, aten.sub.Tensor]
    for pred in (torch.tensor(True), torch.tensor(False)):
        for size in (3,) if mode != "symbolic" else (3, 7):
            x = torch.randn(size, 4)
            torch.testing.assert_close(graph_module(pred, x), _branch_eagerly(pred, x))


@pytest.mark.parametrize("mode", MODES)
def test_the_results_of_a_cond_are_described(mode: str) -> None:
    graph_module = refimpl.make_fx(_branch, tracing_mode=mode)(torch.tensor(True), torch.randn(3, 4))
    values = _node(graph_module, hop.cond).meta["val"]
    assert [tuple(value.shape)[1] for value in values] == [4, 4]
    assert all(value.stride()[1] == 1 and value.dtype is torch.float32 for value in values)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_branch_uses_from_around_it_is_an_operand(mode: str) -> None:
    """Values of the trace; a tensor that the trace does not know is a constant of the branch."""
    weight = torch.randn(4)

    def program(pred: Tensor, x: Tensor) -> Tensor:
        y, z, n = x * 2, x * 3, x.shape[0]
        return torch.cond(pred, lambda a: a + y + n, lambda a: a * z + y + weight, (x,)) + z

    def eagerly(pred: Tensor, x: Tensor) -> Tensor:
        y, z, n = x * 2, x * 3, x.shape[0]
        return (x + y + n if pred else x * z + y + weight) + z

    graph_module = refimpl.make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)(
        torch.tensor(True), torch.randn(3, 4)
    )
    assert len(_sequence(_node(graph_module, hop.cond).args[3])) == 3  # x, y, z
    assert graph_module.get_submodule("false_graph_0")._tensor_constant0 is weight
    for pred in (torch.tensor(True), torch.tensor(False)):
        x = torch.randn(3 if mode != "symbolic" else 6, 4)
        torch.testing.assert_close(graph_module(pred, x), eagerly(pred, x))


def test_a_size_from_around_that_no_operand_has_is_an_operand() -> None:
    def program(pred: Tensor, x: Tensor, y: Tensor) -> Tensor:
        n = y.shape[0] * 2
        return torch.cond(pred, lambda a: a + n, lambda a: a - n, (x,))

    graph_module = refimpl.make_fx(program, tracing_mode="symbolic")(torch.tensor(True), torch.randn(3), torch.randn(5))
    x, y = torch.randn(4), torch.randn(9)
    torch.testing.assert_close(graph_module(torch.tensor(True), x, y), x + 18)
    torch.testing.assert_close(graph_module(torch.tensor(False), x, y), x - 18)


@pytest.mark.parametrize("mode", MODES)
def test_a_cond_in_a_cond_uses_what_is_around_both(mode: str) -> None:
    def program(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        y = x.exp()

        def outer(a: Tensor) -> Tensor:
            return torch.cond(q, lambda b: b + y, lambda b: b - y, (a * 2,)) + 1

        return torch.cond(p, outer, lambda a: a.sin(), (x,))

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.tensor(True), torch.randn(3))
    x = torch.randn(3)
    for p, q, expected in (
        (True, True, x * 2 + x.exp() + 1),
        (True, False, x * 2 - x.exp() + 1),
        (False, True, x.sin()),
    ):
        torch.testing.assert_close(graph_module(torch.tensor(p), torch.tensor(q), x), expected)


@pytest.mark.parametrize("mode", MODES)
def test_two_conds_have_graphs_of_their_own(mode: str) -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        y = torch.cond(p, torch.sin, torch.cos, (x,))
        return torch.cond(p, torch.exp, torch.neg, (y,))

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.randn(3))
    assert {"true_graph_0", "false_graph_0", "true_graph_1", "false_graph_1"} == {
        name for name, _ in graph_module.named_children()
    }
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(torch.tensor(True), x), x.sin().exp())
    torch.testing.assert_close(graph_module(torch.tensor(False), x), -x.cos())


@pytest.mark.parametrize("mode", MODES)
def test_a_branch_may_return_its_operand(mode: str) -> None:
    """What was passed in must not be taken for the result afterwards."""

    def program(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = hop.cond(p, lambda a: (a,), lambda a: (a * 2,), (x,))[0]
        return x + 1, y + 1

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.randn(3))
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(torch.tensor(False), x), (x + 1, x * 2 + 1))
    torch.testing.assert_close(graph_module(torch.tensor(True), x), (x + 1, x + 1))


def test_in_real_mode_a_branch_that_writes_writes_once() -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda a: a.add_(1) * 2, lambda a: a.mul_(10) * 3, (x,))

    x = torch.ones(2)
    with torch.no_grad():
        refimpl.make_fx(program)(torch.tensor(True), x)
    assert x.tolist() == [2.0, 2.0]


def test_a_condition_on_sizes_is_part_of_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        return hop.cond(x.shape[0] > 4, lambda a: a.sin(), lambda a: a.cos(), (x,))

    graph_module = refimpl.make_fx(program, tracing_mode="symbolic")(torch.randn(6))
    for size in (3, 9):
        x = torch.randn(size)
        torch.testing.assert_close(graph_module(x), x.sin() if size > 4 else x.cos())


def test_a_size_in_which_the_branches_differ_is_unbacked() -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda a: a[:2].clone(), lambda a: torch.cat((a, a)), (x,)) * 2

    graph_module = refimpl.make_fx(program, tracing_mode="symbolic")(torch.tensor(True), torch.randn(3, 4))
    node = _node(graph_module, hop.cond)
    (symbol,) = node.meta["unbacked_bindings"]
    assert str(node.meta["val"][0].shape[0]) == str(symbol)
    x = torch.randn(5, 4)
    torch.testing.assert_close(graph_module(torch.tensor(True), x), x[:2] * 2)
    torch.testing.assert_close(graph_module(torch.tensor(False), x), torch.cat((x, x)) * 2)


@pytest.mark.parametrize("mode", ("fake", "symbolic"))
@pytest.mark.parametrize(
    ("true_fn", "false_fn"),
    [
        (lambda a: (a * 2, a + 1), lambda a: a + 1),
        (lambda a: a.sin(), lambda a: a.to(torch.float64)),
        (lambda a: a.sin(), lambda a: a.sum()),
        (lambda a: a.sin(), lambda a: a.t().contiguous().t()),
    ],
)
def test_branches_that_do_not_fit_are_refused(
    mode: str, true_fn: Callable[..., Any], false_fn: Callable[..., Any]
) -> None:
    def program(p: Tensor, x: Tensor) -> Any:
        return torch.cond(p, true_fn, false_fn, (x,))

    with pytest.raises(MismatchedBranches, match="true branch has") as raised:
        refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.randn(3, 4))
    assert isinstance(raised.value, UncapturedHigherOrderOp)
    assert str(raised.value).endswith("Higher Order Operator: torch.cond")


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_that_is_given_twice_is_one_operand(mode: str) -> None:
    def program(p: Tensor, x: Tensor) -> Any:
        return torch.cond(p, lambda a, b, rest: a + b * rest[0], lambda a, b, rest: (a - b) * rest[1], (x, x, [x, p]))

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.randn(3))
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
    assert len(node.args[3]) == 2
    for p in (torch.tensor(True), torch.tensor(False)):
        x = torch.randn(3)
        torch.testing.assert_close(graph_module(p, x), program(p, x))


def test_branches_of_other_dtypes_are_refused_in_real_mode() -> None:
    with pytest.raises(MismatchedBranches, match="true branch has dtype"):
        refimpl.make_fx(lambda p, x: torch.cond(p, torch.sin, lambda a: a.double(), (x,)))(
            torch.tensor(True), torch.ones(3)
        )


def _written(a: Tensor) -> Tensor:
    a.add_(1)
    return a.sin()


def _returned_twice(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a.sin()
    return b[1:], b[:-1]


NOT_FUNCTIONAL: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "cond returns an operand": (lambda x: torch.cond(x.sum() > 0, lambda a: a, torch.sin, (x,)), "returns"),
    "cond returns a view": (lambda x: torch.cond(x.sum() > 0, lambda a: a[0], lambda a: a[0] * 2, (x,)), "returns"),
    "cond returns two views": (
        lambda x: torch.cond(x.sum() > 0, _returned_twice, lambda a: (a[1:] * 2, a[1:] * 3), (x,)),
        "returns",
    ),
    "cond returns what is around it": (lambda x: torch.cond(x.sum() > 0, lambda: x, lambda: x * 2), "returns"),
    "cond writes": (lambda x: torch.cond(x.sum() > 0, _written, torch.sin, (x,)), "writes"),
    "cond writes to a view": (
        lambda x: torch.cond(x.sum() > 0, lambda a: a[0].mul_(2) * 1, lambda a: a[0] * 2, (x,)),
        "writes",
    ),
    "cond writes to what is around it": (
        lambda x: torch.cond(x.sum() > 0, lambda: _written(x), lambda: x * 2),
        "writes",
    ),
    "map writes": (lambda x: hop_map(_written, x), "writes"),
    "map returns a row": (lambda x: hop_map(lambda a: a.view(1), x), "returns"),
    "scan writes": (lambda x: scan(lambda c, a: (c + _written(a), a * 2), torch.zeros(()), x), "writes"),
    "scan returns its carry": (lambda x: scan(lambda c, a: (c + a, c), torch.zeros(()), x), "returns"),
    "while_loop writes": (
        lambda x: while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, _written(a)), (torch.tensor(0), x)),
        "writes",
    ),
    "while_loop returns its carry": (
        lambda x: while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a), (torch.tensor(0), x)),
        "returns",
    ),
}


@pytest.mark.parametrize("mode", ("real", "symbolic"))
@pytest.mark.parametrize("name", NOT_FUNCTIONAL)
def test_functions_that_write_to_inputs_or_return_them_are_refused(name: str, mode: str) -> None:
    program, seen = NOT_FUNCTIONAL[name]
    with pytest.raises(NotFunctional, match=f"a function that {seen}"):
        refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3))


@pytest.mark.parametrize("name", ["cond returns an operand", "cond writes", "while_loop writes"])
def test_without_gradients_they_are_traced_as_in_torch(name: str) -> None:
    program, _ = NOT_FUNCTIONAL[name]
    with torch.no_grad():
        traced = refimpl.make_fx(program)(torch.ones(3))
        found = [(function(x := torch.ones(3)), x) for function in (traced, program)]
    torch.testing.assert_close(*found)


# -------------------------------------------------------------------------------------------------------- loops


def _count_down(n: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    step = x * 2
    return while_loop(lambda i, y: i > 0, lambda i, y: (i - 1, y + step), (n, x))


@pytest.mark.parametrize("mode", MODES)
def test_a_while_loop_runs_as_often_as_its_condition_holds(mode: str) -> None:
    graph_module = refimpl.make_fx(_count_down, tracing_mode=mode)(torch.tensor(2), torch.randn(3))
    assert {name for name, _ in graph_module.named_children()} == {"while_loop_cond_graph_0", "while_loop_body_graph_0"}
    for rounds in (0, 1, 5):
        x = torch.randn(3 if mode != "symbolic" else 6)
        _, y = graph_module(torch.tensor(rounds), x)
        torch.testing.assert_close(y, x + rounds * 2 * x)


@pytest.mark.parametrize("mode", ("fake", "symbolic"))
def test_an_int_in_the_carry_of_a_loop_is_another_in_every_round(mode: str) -> None:
    def program(x: Tensor, limit: Tensor) -> tuple[Any, Tensor]:
        i, y = while_loop(lambda i, y: y.sum() < limit, lambda i, y: (i + 1, y + i), (1, x))
        return i, y * i

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.zeros(2), torch.tensor(5.0))
    assert _node(graph_module, hop.while_loop).meta["unbacked_bindings"]
    for limit in (-1.0, 5.0, 50.0):
        i, y = 1, torch.zeros(2)
        while y.sum() < limit:
            i, y = i + 1, y + i
        found = graph_module(torch.zeros(2), torch.tensor(limit))
        assert found[0] == i
        torch.testing.assert_close(found[1], y * i)


def test_an_int_in_the_carry_of_a_loop_is_refused_in_real_mode() -> None:
    with pytest.raises(UnsupportedByRefimpl, match="tracing_mode='symbolic'"):
        refimpl.make_fx(lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x)))(torch.ones(2))


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_returns_another_shape_is_refused(mode: str) -> None:
    def program(x: Tensor) -> Any:
        return while_loop(lambda y: y.sum() < 3, lambda y: (torch.cat((y, y)),), (x,))

    with pytest.raises(MismatchedBranches, match="the carry has shape"):
        refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3))


@pytest.mark.parametrize("mode", MODES)
def test_a_scan_carries_and_collects(mode: str) -> None:
    def program(init: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        scale = init.sum()
        return scan(lambda c, x: (c * scale + x, c + x), init, xs)

    def eagerly(init: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        c, ys = init, []
        for x in xs:
            ys.append(c + x)
            c = c * init.sum() + x
        return c, torch.stack(ys)

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3), torch.randn(5, 3))
    assert hop.scan in targets_of(graph_module)
    init, xs = torch.randn(3), torch.randn(5 if mode != "symbolic" else 8, 3)
    torch.testing.assert_close(graph_module(init, xs), eagerly(init, xs))


@pytest.mark.parametrize("containers", [list, tuple])
def test_operands_of_a_cond_are_a_tuple_in_the_graph(containers: Any) -> None:
    def program(x: Tensor, shift: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + shift, lambda x: x - shift, containers([x]))

    graph_module = refimpl.make_fx(program)(torch.ones(2), torch.ones(2))
    (node,) = graph_module.graph.find_nodes(op="call_function", target=hop.cond)
    assert type(node.args[3]) is tuple
    assert len(node.args[3]) == 2
    assert graph_module(-torch.ones(2), torch.ones(2)).tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("mode", MODES)
def test_a_map_stacks_what_its_body_returns(mode: str) -> None:
    def program(xs: Tensor, y: Tensor) -> dict[str, Tensor]:
        shift = y.exp()
        return control_flow.map(lambda x, z: {"a": x * z + shift, "b": x.sum()}, xs, y)  # pyright: ignore[reportArgumentType]

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3, 2), torch.randn(2))
    assert hop.map_impl in targets_of(graph_module)
    xs, y = torch.randn(3 if mode != "symbolic" else 6, 2), torch.randn(2)
    torch.testing.assert_close(graph_module(xs, y), {"a": xs * y + y.exp(), "b": xs.sum(1)})


@pytest.mark.parametrize("mode", MODES)
def test_an_associative_scan_combines(mode: str) -> None:
    def program(xs: Tensor) -> Any:
        return hop.associative_scan(lambda a, b: (a + b,), [xs], ())

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(5, 3))
    xs = torch.randn(5 if mode != "symbolic" else 8, 3)
    torch.testing.assert_close(graph_module(xs)[0], xs.cumsum(0))


def test_the_generic_associative_scan_is_no_operator() -> None:
    graph_module = refimpl.make_fx(lambda xs: associative_scan(torch.add, xs, 0, combine_mode="generic"))(
        torch.randn(4)
    )
    assert hop.associative_scan not in targets_of(graph_module)
    xs = torch.randn(4)
    torch.testing.assert_close(graph_module(xs), xs.cumsum(0))


# ------------------------------------------------------------------------------------------------ other operators


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_subgraph_is_traced_once(mode: str) -> None:
    traced: list[int] = []

    def layer(x: Tensor) -> tuple[Tensor]:
        traced.append(1)
        return (x.sin() * 2,)

    def program(x: Tensor) -> Tensor:
        y = hop.invoke_subgraph(layer, "layer", x)[0]
        return hop.invoke_subgraph(layer, "layer", torch.cat((y, y)))[0]

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    assert [name for name, _ in graph_module.named_children()] == ["repeated_subgraph0"]
    assert len(traced) == 1
    x = torch.randn(3)
    y = x.sin() * 2
    torch.testing.assert_close(graph_module(x), torch.cat((y, y)).sin() * 2)


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_on_tensors_is_recorded_as_it_stands(mode: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = hop.out_dtype(aten.mm.default, torch.int32, x, x)
        token, total = hop.with_effects(torch.tensor([]), aten.sum.default, x)
        return wide, total + token.numel()

    x = torch.randint(-100, 100, (3, 3), dtype=torch.int8)
    graph_module = refimpl.make_fx(program, tracing_mode=mode)(x)
    assert {hop.out_dtype, hop.with_effects} <= set(targets_of(graph_module))
    wide, total = graph_module(x)
    torch.testing.assert_close(wide, x.to(torch.int32) @ x.to(torch.int32))
    assert total == x.sum()


@pytest.mark.parametrize("mode", MODES)
def test_random_state_is_saved_and_restored_by_its_operators(mode: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        state, first = hop.run_and_save_rng_state(aten.rand_like.default, x)
        return first, hop.run_with_rng_state(state, aten.rand_like.default, x)

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(4))
    first, again = graph_module(torch.ones(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, graph_module(torch.ones(4))[0])


def _module(f: Callable[..., Any]) -> torch.fx.GraphModule:
    return refimpl.make_fx(f)(torch.randn(3))


SIN = _module(lambda a: (a.sin(),))

# Operator -> a call of it that gives sin(x), and the targets of the graph.
OTHERS: dict[str, tuple[Callable[[Tensor], Any], list[object]]] = {
    "wrap": (lambda x: hop.wrap(torch.sin, x), [aten.sin.default]),
    "wrap_with_set_grad_enabled": (lambda x: hop.wrap_with_set_grad_enabled(False, torch.sin, x), [aten.sin.default]),
    "wrap_with_autocast": (
        lambda x: hop.wrap_with_autocast("cpu", torch.bfloat16, True, None, torch.sin, x),
        [aten.sin.default],
    ),
    "tag_activation_checkpoint": (
        lambda x: hop.tag_activation_checkpoint(SIN, x, use_reentrant=False)[0],
        [aten.sin.default],
    ),
    "hints_wrapper": (
        lambda x: hop.hints_wrapper(lambda a: (a.sin(),), (x,), {}, hints={"n": 1})[0],
        [hop.hints_wrapper, operator.getitem],
    ),
    "strict_mode": (
        lambda x: hop.strict_mode(lambda a: (a.sin(),), (x,))[0],
        [hop.strict_mode, operator.getitem],
    ),
    "run_const_graph": (lambda x: hop.run_const_graph(SIN, (x,))[0], [hop.run_const_graph, operator.getitem]),
    "foreach_map": (lambda x: hop.foreach_map(SIN, x)[0], [hop.foreach_map, operator.getitem]),
    "invoke_quant": (lambda x: hop.invoke_quant(SIN, x)[0], [hop.invoke_quant, operator.getitem]),
    "auto_functionalized": (
        lambda x: hop.auto_functionalized(_increment, x=x.sin() - 1)[1],
        [aten.sin.default, aten.sub.Tensor, hop.auto_functionalized, operator.getitem, operator.getitem],
    ),
    "print": (lambda x: (hop.print("{}", 3), x.sin())[1], [hop.print, aten.sin.default]),
    "_export_tracepoint": (
        lambda x: hop._export_tracepoint(x.sin(), kind="a", path="b")[0],
        [aten.sin.default, hop._export_tracepoint, operator.getitem],
    ),
}


@torch.library.custom_op("refimpl_test::increment", mutates_args={"x"})
def increment(x: Tensor) -> None:
    x.add_(1)


increment.register_fake(lambda x: None)
_increment = torch.ops.refimpl_test.increment.default


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_are_recorded_or_step_aside(name: str, mode: str) -> None:
    program, targets = OTHERS[name]
    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    assert targets_of(graph_module) == targets
    x = torch.randn(3 if mode != "symbolic" else 5)
    torch.testing.assert_close(graph_module(x), x.sin())


class _Twice(type(hop.cond).__mro__[1]):  # HigherOrderOperator
    def __init__(self) -> None:
        super().__init__("refimpl_test_twice")

    def __call__(self, function: Callable[..., Any], x: Tensor) -> Tensor:
        return super().__call__(function, x)


@pytest.fixture
def twice() -> Iterator[Any]:
    twice = _Twice()

    @twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
    def run(function: Callable[..., Any], x: Tensor) -> Tensor:
        return function(function(x))

    twice.fallthrough(torch._C.DispatchKey.AutogradCPU)
    yield twice
    rules._RULES.pop(twice.name(), None)


def test_an_unknown_operator_on_functions_needs_a_rule(twice: Any) -> None:
    with pytest.raises(UnsupportedByRefimpl, match="register_higher_order_rule"):
        refimpl.make_fx(lambda x: twice(torch.sin, x))(torch.ones(2))

    def rule(call: HigherOrderCall, function: Callable[..., Any], x: Tensor) -> Recorded:
        body = call.trace(function, (x,))
        (node,) = call.attach({"twice_body_": body.graph_module})
        result = call.run(body.graph_module, x) if call.fake_mode is None else call.fresh(body.result)
        return Recorded(args=(node, x), kwargs={}, result=result)

    register_higher_order_rule(twice, rule)
    for mode in MODES:
        graph_module = refimpl.make_fx(lambda x: twice(torch.sin, x) + 1, tracing_mode=mode)(torch.ones(2))
        assert targets_of(graph_module) == [twice, aten.add.Tensor]
        x = torch.randn(2)
        torch.testing.assert_close(graph_module(x), x.sin().sin() + 1)


# ------------------------------------------------------------------------------------------- sub-tracing, hygiene


@pytest.mark.parametrize("mode", MODES)
def test_a_subgraph_is_traced_beside_its_trace(mode: str) -> None:
    """PX-44"""
    subgraphs: list[torch.fx.GraphModule] = []

    def program(x: Tensor) -> Tensor:
        trace = current_trace()
        assert trace is not None
        subgraphs.append(trace.subgraph(torch.sin, x))
        return x.cos()

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    assert targets_of(graph_module) == [aten.cos.default]
    assert targets_of(subgraphs[0]) == [aten.sin.default]
    if mode != "real":
        inner, outer = (gm.graph.find_nodes(op="placeholder")[0].meta["val"] for gm in (subgraphs[0], graph_module))
        assert inner.fake_mode is outer.fake_mode
        assert str(inner.shape) == str(outer.shape)


# Through which operators on functions compile themselves: torch before 2.13 has no function of its own for it.
_REPLACED = (utils, "_hop_compile_and_call") if hasattr(utils, "_hop_compile_and_call") else (torch, "compile")


def test_without_a_function_of_torch_s_own_its_compiler_is_replaced_for_operators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiler(model: Any = None, **settings: Any) -> Any:
        return lambda *args: ("compiled", model, settings)

    def operator(x: int) -> int:
        return x + 1

    def traces_nothing(*_: Any) -> Any:
        raise AssertionError("the operator is called, not traced")

    operator.__module__ = "torch._higher_order_ops.some"
    monkeypatch.delattr(utils, "_hop_compile_and_call", raising=False)
    monkeypatch.setattr(torch, "compile", compiler)
    state = direct_calls._InstallationState()
    state.enter()
    try:
        assert torch.compile(operator, fullgraph=True)(1) == ("compiled", operator, {"fullgraph": True})
        token = direct_calls._trace_function.set(traces_nothing)
        try:
            assert torch.compile(operator, fullgraph=True)(1) == 2
            assert torch.compile(len)("abc") == ("compiled", len, {})
        finally:
            direct_calls._trace_function.reset(token)
    finally:
        state.leave()
    assert torch.compile is compiler


@pytest.mark.parametrize("mode", MODES)
def test_a_branch_that_fails_leaves_nothing_behind(mode: str) -> None:
    owner, name = _REPLACED
    original = getattr(owner, name)

    def failing(a: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refimpl.make_fx(lambda p, x: torch.cond(p, failing, torch.sin, (x,)), tracing_mode=mode)(
            torch.tensor(True), torch.ones(2)
        )
    assert getattr(owner, name) is original
    assert current_trace() is None
    assert _get_current_dispatch_mode_stack() == []


def test_another_thread_s_cond_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compile_elsewhere(*args: Any, **kwargs: Any) -> Any:
        seen.append("compiled")
        return lambda *operands: None

    monkeypatch.setattr(*_REPLACED, compile_elsewhere)

    def program(x: Tensor) -> Tensor:
        thread = threading.Thread(target=torch.cond, args=(torch.tensor(True), torch.sin, torch.cos, (torch.ones(1),)))
        thread.start()
        thread.join()
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    graph_module = refimpl.make_fx(program)(torch.ones(2))
    assert hop.cond in targets_of(graph_module)
    assert seen == ["compiled"]


@pytest.mark.parametrize("mode", MODES)
def test_branches_are_traced_above_autograd_where_the_trace_is(mode: str) -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda a: torch.nn.functional.linear(a, a), lambda a: a.cos(), (x,))

    graph_module = refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(torch.tensor(True), torch.randn(3, 3))
    assert targets_of(_child(graph_module, "true_graph_0")) == [aten.linear.default]
    x = torch.randn(3, 3)
    torch.testing.assert_close(graph_module(torch.tensor(True), x), x @ x.t())
