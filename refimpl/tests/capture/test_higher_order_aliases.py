"""Tests of operators that take functions: tensors that share memory or are written to are refused as in torch; the operators
within torch.func; associative_scan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl._torch import hop_map, transform_depth
from refimpl._torch import hop_scan as scan
from refimpl._torch import hop_while_loop as while_loop
from refimpl.capture.public.errors import TorchRuntimeError, UncapturedHigherOrderOpError
from refimpl.tests.capture.capturing import captured_with, each_of

map_over: Any = hop_map
scanned: Any = functools.partial(associative_scan, combine_mode="generic")
NUMBER = torch.tensor(0)


def rows(*, requires_grad: bool = False) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, 12).reshape(4, 3).requires_grad_(requires_grad)


# ----------------------------------------------------------------------------------------------------- aliases and writes

ALIASING: dict[str, Callable[[Any], Any]] = {
    "operands of cond": lambda x: torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, x[0])),
    "operands of map": lambda x: map_over(lambda ab: ab[0] + ab[1], (x, x)),
    "an operand of map and its argument": lambda x: map_over(lambda a, b: a + b[0], x, x),
    "an operand of map and a variable": lambda x: map_over(lambda a: a + x[0], x),
    "results of cond": lambda x: torch.cond(x.sum() > 0, lambda a: (a + 1,) * 2, lambda a: (a - 1,) * 2, (x,)),
    "results of map": lambda x: map_over(lambda a: (a + 1,) * 2, x),
    "a result of while_loop and its operand": lambda x: while_loop(
        lambda i, a: i < 2, lambda i, a: (i + 1, a), (NUMBER, x)
    ),
    "results of while_loop, swapped": lambda x: while_loop(
        lambda i, a, b: i < 2, lambda i, a, b: (i + 1, b, a), (NUMBER, x, x + 1)
    ),
    "results of scan": lambda x: scan(lambda c, a: (c + a, c.view(3)), torch.zeros(3), x),
    "a result of cond and its operand": lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a, (x,)),
    "a result of cond and a variable": lambda x: torch.cond(x.sum() > 0, lambda a: x, lambda a: a + 1, (x + 1,)),
}
SHARING: dict[str, Callable[[Any], Any]] = {
    "one tensor twice": lambda x: torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, x)),
    "views made in the branch": lambda x: torch.cond(x.sum() > 0, lambda a: a + x[0], lambda a: a - x[1], (x,)),
    "carried tensors": lambda x: while_loop(lambda a, b: a.sum() < 9, lambda a, b: (a + 1, b + 1), (x, x[0])),
    "the scanned tensor twice": lambda x: scan(lambda c, ab: (c + ab[0], ab[1] + 0), x[0], (x, x)),
}
WRITING: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda a: a.add_(1) + 0, lambda a: a - 1, (x.clone(),)),
    "cond of a variable": lambda x: torch.cond(x.sum() > 0, lambda: x.add_(1) + 0, lambda: x - 1),
    "map": lambda x: map_over(lambda a: a.add_(1) + 0, x.clone()),
    "while_loop": lambda x: while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a.add_(1) + 0), (NUMBER, x.clone())),
    "scan": lambda x: scan(lambda c, a: (c.add_(a) + 0, a + 0), torch.zeros(3), x),
}


@pytest.mark.parametrize("name", ALIASING)
def test_tensors_that_share_memory_are_refused(name: str) -> None:
    with pytest.raises(UncapturedHigherOrderOpError, match="Encountered aliasing during higher order op tracing"):
        refimpl.compile(ALIASING[name], backend="eager", fullgraph=True)(rows())


@pytest.mark.parametrize("name", SHARING)
def test_tensors_may_share_memory_where_torch_copies_them(name: str) -> None:
    program = SHARING[name]
    torch.testing.assert_close(refimpl.compile(program, backend="aot_eager", fullgraph=True)(rows()), program(rows()))


@pytest.mark.parametrize("name", WRITING)
def test_writes_are_refused(name: str) -> None:
    with pytest.raises(UncapturedHigherOrderOpError, match="Encountered input mutation during higher order op tracing"):
        refimpl.compile(WRITING[name], backend="eager", fullgraph=True)(rows())


def test_an_error_of_an_operator_in_a_branch_stays_what_it_is() -> None:
    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a @ a, lambda a: a + 1, (x,))

    with pytest.raises(TorchRuntimeError):
        refimpl.compile(program, backend="eager", fullgraph=True)(rows())


# ------------------------------------------------------------------------------------------------------- within torch.func


def by_row(x: Any) -> Any:
    weight = x.sum(0)
    return torch.vmap(lambda a: torch.cond(a.sum() > 0, lambda b: b * weight, lambda b: b - weight, (a,)))(x)


def trees_by_row(x: Any) -> Any:
    def one(a: Any) -> Any:
        return torch.cond(
            a.sum() > 0, lambda b: {"s": b.sin(), "t": (b + 1,)}, lambda b: {"s": b.cos(), "t": (b - 1,)}, (a,)
        )

    return torch.vmap(one)(x)


def for_all_rows(x: Any) -> Any:
    pred = x.sum() > 0
    return torch.vmap(lambda a: torch.cond(pred, torch.sin, torch.cos, (a,)))(x)


def by_row_of_pairs(x: Any) -> Any:
    chosen = torch.vmap(lambda a, b: torch.cond(a > b, torch.sin, torch.cos, (a * b,)), in_dims=(0, None))
    return torch.vmap(chosen, in_dims=(None, 0))(x[0], x[1])


@each_of(by_row, trees_by_row, for_all_rows, by_row_of_pairs)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_cond_within_vmap(program: Callable[..., Any], backend: str) -> None:
    """Each slice has the results of its own branch. (Torch gives only the first result of a branch, and raises for more.)"""
    compiled = refimpl.compile(program, backend=backend, fullgraph=True)
    x = rows()
    if program is trees_by_row:
        positive = (x.sum(1) > 0)[:, None]
        expected: Any = {"s": torch.where(positive, x.sin(), x.cos()), "t": (torch.where(positive, x + 1, x - 1),)}
    else:
        torch._dynamo.reset()  # which eager's cond compiles with: of sizes that it has seen change it makes symbols
        expected = program(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), expected)
    given = rows(requires_grad=True)
    (gradient,) = torch.autograd.grad(_total(compiled(given)), given)
    assert gradient.isfinite().all()


def _total(found: Any) -> torch.Tensor:
    return sum((leaf.sum() for leaf in tree_leaves(found)), torch.zeros(()))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.func.grad(lambda a: torch.cond(a.sum() > 0, torch.sin, torch.cos, (a,)).sum())(x),
        lambda x: torch.vmap(lambda a: map_over(torch.sin, a))(x),
        lambda x: torch.vmap(lambda a: scan(lambda c, b: (c + b, c * b), torch.zeros(()), a))(x),
        lambda x: torch.vmap(lambda a: while_loop(lambda b: b.sum() < 3, lambda b: (b + 1,), (a,)))(x),
    ],
    ids=["cond in grad", "map in vmap", "scan in vmap", "while_loop in vmap"],
)
def test_others_are_refused_by_name(program: Callable[..., Any]) -> None:
    with pytest.raises(UncapturedHigherOrderOpError, match=r"torch\.func|within vmap"):
        refimpl.compile(program, backend="eager", fullgraph=True)(rows())
    assert not transform_depth()


# ---------------------------------------------------------------------------------------------------------- associative_scan


class Combined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, bias=False)
        torch.nn.init.eye_(self.linear.weight)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.linear(a) + b


COMBINED = Combined()


def running_sums(x: Any) -> Any:
    return [scanned(torch.add, x, dim, reverse=reverse) for dim in (0, 1, -1) for reverse in (False, True)]


def running_trees(x: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return {"i": a["i"] * b["i"], "j": [a["j"][0] * b["i"] + b["j"][0]]}

    return scanned(combine, {"i": x, "j": [x.cos()]}, 0)


def running_closures(x: Any) -> Any:
    weight = x.sum(0)
    return scanned(lambda a, b: a * weight + b, x, 0), scanned(functools.partial(lambda k, a, b: a + b * k, 2), x, 0)


def running_modules(x: Any) -> Any:
    return scanned(COMBINED, x, 0)


def running_products(x: Any) -> Any:
    return scanned(torch.matmul, x[:, :, None] * x[:, None], 0)


def running_by_row(x: Any) -> Any:
    return torch.vmap(lambda a: scanned(torch.maximum, a, 0))(x)


@pytest.mark.fractional
@each_of(running_sums, running_trees, running_closures, running_modules, running_products, running_by_row)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_associative_scan(program: Callable[..., Any], backend: str) -> None:
    compiled, expected = refimpl.compile(program, backend=backend, fullgraph=True), program(rows())
    torch.testing.assert_close(compiled(rows()), expected)
    gradients = []
    for function in (program, compiled):
        x = rows(requires_grad=True)
        gradients.append(torch.autograd.grad(_total(function(x)), x))
    torch.testing.assert_close(gradients[1], gradients[0])


# ------------------------------------------------------------------------------------------- what these programs brought up


def test_what_is_callable() -> None:
    class Callable_:
        def __call__(self) -> None: ...

    class Plain: ...

    def program(x: Any) -> Any:
        return [callable(each) for each in (functools.partial(torch.add, x), Callable_(), Plain(), Plain, x, len, 3)]

    compiled, _, made = captured_with(program, fullgraph=True)
    assert compiled(rows()) == [True, True, False, True, False, True, False]
    assert not made.breaks
