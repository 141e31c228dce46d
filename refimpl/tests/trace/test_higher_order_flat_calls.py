"""Tests of torch.cond, map, scan and while_loop called in a trace: containers, gradients, and torch.vmap around them.

The expected results are computed by plain Python loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl._torch import hop_map, transform_depth
from refimpl._torch import hop_scan as scan
from refimpl._torch import hop_while_loop as while_loop
from refimpl.aot import functional_program
from refimpl.aot.analysis.metadata import NeedsMore, TraceNeeds
from refimpl.errors import MismatchedBranches, UnsupportedByRefimpl
from refimpl.pipeline import compile_aot
from refimpl.tests.graphs import targets_of

map_over: Any = hop_map
Program = Callable[..., Any]


def rows(*, requires_grad: bool = False) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, 12).reshape(4, 3).requires_grad_(requires_grad)


def vector(*, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor([0.5, -1.0, 2.0]).requires_grad_(requires_grad)


def scanned(combine: Program, init: Any, xs: Any) -> Any:
    """scan, as a loop."""
    carry, outs = init, []
    for row in xs:
        carry, out = combine(carry, row)
        outs.append(out)
    return carry, torch.stack(outs)


def products(carry: Any, row: Any) -> Any:
    return carry + row.sin(), carry * row


def _by_fixed(pred: Any, row: Any) -> Any:
    return torch.cond(pred, torch.sin, torch.cos, (row,))


def _repeated(step: Program) -> Program:
    """Each call's function reads the variable `by`, which has its last value when the backward runs."""

    def program(x: Any, w: Any) -> Any:
        for by in (2.0, 3.0):
            x = step(x, w, lambda a: a * by * w)  # noqa: B023
        return x

    return program


def _written_afterwards(x: Any, w: Any) -> Any:
    """The gradient of a sum does not need what was added."""
    y = w * 2
    _, z = while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a + y), (torch.tensor(0), x))
    y.add_(1)
    return z, y


PAIRS: dict[str, tuple[Program, Program]] = {
    "map": (lambda x, w: map_over(lambda a: a.sin() * a, x), lambda x, w: x.sin() * x),
    "map with an argument": (lambda x, w: map_over(lambda a, y: a.sin() * y, x, w), lambda x, w: x.sin() * w),
    "map of a closure": (lambda x, w: map_over(lambda a: a.sin() * w, x), lambda x, w: x.sin() * w),
    "map of trees": (
        lambda x, w: map_over(lambda d, y: {"s": d["a"] * y[0], "t": [d["b"][0] - w]}, {"a": x, "b": (x + 1,)}, (w,)),
        lambda x, w: {"s": x * w, "t": [x + 1 - w]},
    ),
    "scan": (lambda x, w: scan(products, torch.zeros(3), x), lambda x, w: scanned(products, torch.zeros(3), x)),
    "scan of an initial value": (lambda x, w: scan(products, w, x), lambda x, w: scanned(products, w, x)),
    "scan of a closure": (
        lambda x, w: scan(lambda c, a: (c * w + a, c + a), torch.zeros(3), x),
        lambda x, w: scanned(lambda c, a: (c * w + a, c + a), torch.zeros(3), x),
    ),
    "scan of trees": (
        lambda x, w: scan(lambda c, a: ({"s": c["s"] + a[0]}, [c["s"] * a[1]["k"]]), {"s": w}, (x, {"k": x})),
        lambda x, w: (
            {"s": w + x[0] + x[1] + x[2] + x[3]},
            [torch.stack([w, w + x[0], w + x[0] + x[1], w + x[0] + x[1] + x[2]]) * x],
        ),
    ),
    "scan, reversed": (
        lambda x, w: scan(lambda c, a: (c + a * w, c * 2), torch.zeros(3), x, reverse=True),
        lambda x, w: (x.sum(0) * w, torch.stack([x[k + 1 :].sum(0) * w * 2 for k in range(4)])),
    ),
    "while_loop of trees": (
        lambda x, w: while_loop(
            lambda d: d["i"] < 3,
            lambda d: ({"i": d["i"] + 1, "a": [d["a"][0] * 2]},),
            ({"i": torch.tensor(0), "a": [x]},),
        ),
        lambda x, w: ({"i": torch.tensor(3), "a": [x * 8]},),
    ),
    "while_loop of a closure": (
        lambda x, w: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * w), (torch.tensor(0), x)),
        lambda x, w: (torch.tensor(3), x * w * w * w),
    ),
    "while_loop of a carry that takes gradients later": (
        lambda x, w: while_loop(
            lambda i, a, b: i < 2, lambda i, a, b: (i + 1, a * b, b * w), (torch.tensor(0), torch.ones(4, 3), x)
        ),
        lambda x, w: (torch.tensor(2), x * x * w, x * w * w),
    ),
    "while_loop of a closure that is written to afterwards": (
        _written_afterwards,
        lambda x, w: (x + 2 * w * 2, w * 2 + 1),
    ),
    "while_loop of a cond": (
        lambda x, w: while_loop(
            lambda i, a: i < 3,
            lambda i, a: (i + 1, torch.cond(i < 1, lambda b: b * w, lambda b: b.sin() + x, (a,))),
            (torch.tensor(0), x),
        ),
        lambda x, w: (torch.tensor(3), ((x * w).sin() + x).sin() + x),
    ),
    "while_loop in a cond": (
        lambda x, w: torch.cond(
            x.sum() > 0,
            lambda a: while_loop(lambda i, b: i < 2, lambda i, b: (i + 1, b * w), (torch.tensor(0), a))[1],
            lambda a: a * 2,
            (x,),
        ),
        lambda x, w: x * w * w,
    ),
    "while_loop in a map": (
        lambda x, w: map_over(
            lambda a: while_loop(lambda i, b: i < 2, lambda i, b: (i + 1, b * w), (torch.tensor(0), a))[1], x
        ),
        lambda x, w: x * w * w,
    ),
    "map of a cond": (
        lambda x, w: map_over(lambda a: torch.cond(a.sum() > 0, lambda b: b * w, torch.sin, (a,)), x),
        lambda x, w: torch.where((x.sum(1) > 0)[:, None], x * w, x.sin()),
    ),
    "map of a map": (
        lambda x, w: map_over(lambda a: map_over(lambda b: b * a.sum(), w), x),
        lambda x, w: x.sum(1)[:, None] * w,
    ),
    "map of what is closed over too": (
        lambda x, w: map_over(lambda a: (a * x * w).sum(0), x),
        lambda x, w: x * x.sum(0) * w,
    ),
    "map in a scan": (
        lambda x, w: scan(lambda c, a: (c + map_over(lambda b: b * c[0], a), a * 1), w, x),
        lambda x, w: scanned(lambda c, a: (c + a * c[0], a), w, x),
    ),
    "scan in a map": (
        lambda x, w: map_over(lambda a: scan(lambda c, b: (c * b + w[0], c * 2), a[0] * 1, a)[0], x),
        lambda x, w: torch.stack([scanned(lambda c, b: (c * b + w[0], c * 2), a[0], a)[0] for a in x]),
    ),
    "map and scan in vmap": (
        lambda x, w: torch.vmap(lambda a: (map_over(torch.sin, a), *scan(lambda c, b: (c + b, c * b), a[0] * 1, a)))(x),
        lambda x, w: (
            x.sin(),
            *map(torch.stack, zip(*(scanned(lambda c, b: (c + b, c * b), a[0], a) for a in x), strict=True)),
        ),
    ),
    "map in grad": (
        lambda x, w: torch.func.grad(lambda a: map_over(torch.sin, a).sum())(x) * w,
        lambda x, w: x.cos() * w,
    ),
    "cond of an operand that is closed over too": (
        lambda x, w: torch.cond(x.sum() > 0, lambda a: a * w * 2, lambda a: a - w, (w,)),
        lambda x, w: w * w * 2,
    ),
    "cond of a variable that changes": (
        _repeated(lambda x, w, f: torch.cond(x.sum() > 0, f, torch.sin, (x,))),
        lambda x, w: x * w * w * 6,
    ),
    "map of a variable that changes": (_repeated(lambda x, w, f: map_over(f, x)), lambda x, w: x * w * w * 6),
    "while_loop of a variable that changes": (
        _repeated(lambda x, w, f: while_loop(lambda i, a: i < 1, lambda i, a: (i + 1, f(a)), (torch.tensor(0), x))[1]),
        lambda x, w: x * w * w * 6,
    ),
    "cond of trees": (
        lambda x, w: torch.cond(
            x.sum() > 0,
            lambda d: {"s": d["x"] + w},
            lambda d: {"s": d["x"] - w},
            ({"x": x},),
        ),
        lambda x, w: {"s": x + w},
    ),
    "cond in vmap": (
        lambda x, w: torch.vmap(lambda a: torch.cond(a.sum() > 0, lambda b: b * w, lambda b: b - w, (a,)))(x),
        lambda x, w: torch.where((x.sum(1) > 0)[:, None], x * w, x - w),
    ),
    "cond of pairs in vmap": (
        lambda x, w: torch.vmap(lambda a: torch.cond(a[0] > 0, lambda: (a + 1, a * 2), lambda: (a - 1, a * 3)))(x),
        lambda x, w: tuple(torch.where((x[:, 0] > 0)[:, None], a, b) for a, b in ((x + 1, x - 1), (x * 2, x * 3))),
    ),
    "cond of a fixed predicate in vmap": (
        lambda x, w: torch.vmap(functools.partial(_by_fixed, x.sum() > 0))(x),
        lambda x, w: x.sin(),
    ),
}


@pytest.mark.fractional
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("tracing_mode", ["real", "symbolic"])
def test_values(name: str, tracing_mode: str) -> None:
    program, expected = PAIRS[name]
    x, w = rows(), vector()
    traced = refimpl.make_fx(program, tracing_mode=tracing_mode)(x, w)
    for given in (x, x + 1):
        torch.testing.assert_close(traced(given, w), expected(given, w))
    assert not transform_depth()


@pytest.mark.parametrize("name", PAIRS)
def test_gradients(name: str) -> None:
    program, expected = PAIRS[name]
    results = []
    for function in (expected, compile_aot(program)):
        x, w = rows(requires_grad=True), vector(requires_grad=True)
        out = function(x, w)
        total = sum((leaf.sum() for leaf in tree_leaves(out) if leaf.requires_grad), torch.zeros(()))
        found = torch.autograd.grad(total, (x, w), allow_unused=True)
        results.append((out, [torch.zeros(3) if gradient is None else gradient for gradient in found]))
    torch.testing.assert_close(results[1], results[0])


def test_a_trace_that_always_needs_more_is_refused_after_some_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def always_more(function: Any, inputs: Any, options: Any, needs: TraceNeeds) -> Any:
        raise NeedsMore(replace(needs, captured_first=(*needs.captured_first, torch.ones(3))))

    monkeypatch.setattr(functional_program, "trace_program", always_more)
    with pytest.raises(UnsupportedByRefimpl, match="makes anew in every trace"):
        compile_aot(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(rows())


DROPPING = {
    "cond": lambda x: torch.cond(x.sum() > 0, kept, lambda a: kept(a * 2), (x,)),
    "a view in cond": lambda x: torch.cond(x.sum() > 0, lambda a: kept(a).flatten(), lambda a: a.flatten() * 2, (x,)),
    "map": lambda x: map_over(kept, x),
    "scan": lambda x: scan(lambda c, a: (kept(c), kept(a)), torch.zeros(3), x)[1],
    "while_loop": lambda x: while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, kept(a)), (torch.tensor(0), x))[1],
}


def kept(x: Any) -> Any:
    return torch.nn.functional.dropout(x, training=False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_that_drops_nothing_may_be_what_a_function_returns(name: str, dynamic: bool) -> None:
    """The kernel returns its input. torch's copies it in a function of an operator."""
    x = rows(requires_grad=True)
    result = compile_aot(DROPPING[name], dynamic=dynamic)(x)
    torch.testing.assert_close(result, (x.flatten() if name == "a view in cond" else x).detach() * 1)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], torch.ones(4, 3))


def _write_to_result(x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda a: a.view(-1), lambda a: a.sin().view(-1), (x,))
    y.add_(1)
    return x * 2


def _write_to_operand(x: Any) -> Any:
    z = x * 2
    y = torch.cond(x.sum() > 0, lambda a: a, lambda a: a.sin(), (z,))
    z.add_(1)
    return y


def _outcome(function: Any, x: Any) -> Any:
    try:
        with torch.no_grad():
            return function(x), x
    except RuntimeError as error:  # torch 2.11 refuses such branches
        return type(error).__name__


@pytest.mark.parametrize("program", [_write_to_result, _write_to_operand])
def test_without_gradients_a_write_reaches_the_result_that_is_an_operand(program: Any) -> None:
    compiled = compile_aot(program)
    for factor in (1, -1):
        found, expected = (_outcome(function, rows() * factor) for function in (compiled, program))
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)


def test_the_gradient_of_a_map_is_a_map() -> None:
    def program(x: Any, w: Any) -> Any:
        return torch.autograd.grad(map_over(lambda a: a.sin() * w, x).sum(), (x, w))

    traced = refimpl.make_fx(program, tracing_mode="symbolic")(rows(requires_grad=True), vector(requires_grad=True))
    assert targets_of(traced).count(torch.ops.higher_order.map_impl) == 2
    x, w = rows().repeat(2, 1), vector()
    torch.testing.assert_close(traced(x, w), (x.cos() * w, x.sin().sum(0)))


def test_the_gradient_of_a_loop_takes_any_number_of_rounds() -> None:
    def program(x: Any, w: Any, rounds: Any) -> Any:
        _, y = while_loop(lambda i, a: i < rounds, lambda i, a: (i + 1, a * w), (torch.tensor(0), x))
        return torch.autograd.grad(y.sum(), (x, w))

    x, w = rows(requires_grad=True), vector(requires_grad=True)
    traced = refimpl.make_fx(program, tracing_mode="symbolic")(x, w, torch.tensor(2))
    for rounds in (1, 3, 4):
        expected = torch.autograd.grad((x * w**rounds).sum(), (x, w))
        torch.testing.assert_close(traced(x, w, torch.tensor(rounds)), expected)


def test_a_gradient_that_needs_what_was_written_to_afterwards_is_refused() -> None:
    """Torch computes it with the new value."""

    def program(x: Any) -> Any:
        y = x * 2
        _, z = while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a * y), (torch.tensor(0), x))
        y.add_(1)
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compile_aot(program)(rows(requires_grad=True)).sum().backward()


def test_a_loop_within_a_transform_is_refused_by_name() -> None:
    def program(x: Any) -> Any:
        return torch.vmap(lambda r: while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a * 2), (torch.tensor(0), r)))(
            x
        )

    with pytest.raises(UnsupportedByRefimpl, match="while_loop within a transform"):
        refimpl.make_fx(program)(rows())


def test_a_carry_of_another_shape_is_refused_with_gradients_too() -> None:
    with pytest.raises(MismatchedBranches, match="scan: init has shape"):
        compile_aot(lambda x: scan(lambda c, a: (torch.cat((c, c)), a * 2), torch.ones(3), x))(rows(requires_grad=True))


def test_a_map_without_gradients_is_one_node() -> None:
    traced = refimpl.make_fx(lambda x, w: map_over(lambda a: a * w, x))(rows(), vector())
    assert targets_of(traced)[0] is torch.ops.higher_order.map_impl


def test_cond_within_grad_is_refused_by_name() -> None:
    def program(x: Any) -> Any:
        return torch.func.grad(lambda a: torch.cond(a.sum() > 0, torch.sin, torch.cos, (a,)).sum())(x)

    with pytest.raises(UnsupportedByRefimpl, match=r"torch\.cond within torch\.func\.grad"):
        refimpl.make_fx(program)(rows())
    assert not transform_depth()


def test_a_carry_of_other_length_is_refused() -> None:
    with pytest.raises(MismatchedBranches, match="scan"):
        refimpl.make_fx(lambda x: scan(lambda c, a: ((c + a, c), a + 0), torch.zeros(3), x))(rows())
