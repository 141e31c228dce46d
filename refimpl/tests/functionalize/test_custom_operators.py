"""Tests of custom operators that write to their arguments: they are called on copies of bases, once, with eager's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.export import export
from refimpl.tests.capture.compiled_graphs import assert_as_eager, assert_same, calls

Tensor = torch.Tensor
SCHEMAS = (
    "add_and_scale(Tensor(a!) x, Tensor[] ys, Tensor(b!) z, SymInt w, Tensor n) -> ()",
    "grown(Tensor(a!) x, Tensor y) -> (Tensor, Tensor)",
    "total(Tensor(a!) x) -> Tensor",
    "all(Tensor(a!)? x, Tensor(b!)[] ys, Tensor(c!)[]? zs=None) -> ()",
    "running(Tensor(a!) x, Tensor(b!)[] ys) -> ()",
)


def add_and_scale(x: Tensor, ys: list[Tensor], z: Tensor, w: int, n: Tensor) -> None:
    x.add_(ys[0] + w)
    z.mul_(ys[1] * n)


def grown(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    return x + y, x * y


def total(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum()


def all_(x: Tensor | None, ys: list[Tensor], zs: list[Tensor] | None = None) -> None:
    tensors: list[Tensor] = [*([] if x is None else [x]), *ys, *(zs or ())]
    for number, tensor in enumerate(tensors):
        tensor.add_(number + 1)


def running(x: Tensor, ys: list[Tensor]) -> None:
    for y in ys:
        x.add_(y.sum())
        y.add_(1)


@pytest.fixture(autouse=True, scope="module")
def library() -> Iterator[None]:
    with torch.library._scoped_library("written", "FRAGMENT") as made:
        for schema in SCHEMAS:
            torch.library.define(f"written::{schema.partition('(')[0]}", schema[schema.index("(") :], lib=made)
        for name, function in (
            ("add_and_scale", add_and_scale), ("grown", grown), ("total", total), ("all", all_), ("running", running),
        ):  # fmt: skip
            made.impl(name, function, "CPU")
        for name in ("add_and_scale", "all", "running"):
            made.impl(name, lambda *_: None, "Meta")
        made.impl("grown", lambda x, y: (torch.empty_like(x), torch.empty_like(x)), "Meta")
        made.impl("total", lambda x: x.new_empty(()), "Meta")
        yield


def plain(x: Tensor, y: Tensor) -> Any:
    torch.ops.written.add_and_scale(x, [y, y], y * 1, 2, y)
    return x + y


def with_results(x: Tensor, y: Tensor) -> Any:
    first, second = torch.ops.written.grown(x[0], y[1])
    return first, second, torch.ops.written.total(y[1:])


def with_two_views_of_one_base(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    torch.ops.written.add_and_scale(z[0], [y[0], y[1]], z[1], 3, y[2])
    return z, z[0] + z[1]


def with_many_kinds_of_views(x: Tensor, y: Tensor) -> Any:
    z = y.clone()
    torch.ops.written.all(x[1:], [z.t()[0], z[2], z.view(-1)[1:2]], None)
    torch.ops.written.all(None, [x.view(3, 3)], [z[:, 1]])
    torch.ops.written.all(None, [x.diagonal()])
    return x * z


def with_lists_of_one_base(x: Tensor, y: Tensor) -> Any:
    torch.ops.written.running(x[0], [x[1], y[0], x[2]])
    return x.sum() + y.sum()


def with_views_of_other_dtypes(x: Tensor, y: Tensor) -> Any:
    z = torch.complex(x, y)
    torch.ops.written.all(torch.view_as_real(z)[0], [])
    return torch.view_as_real(z)


PROGRAMS = [
    plain, with_results, with_two_views_of_one_base, with_many_kinds_of_views, with_lists_of_one_base,
    with_views_of_other_dtypes,
]  # fmt: skip


def arguments() -> tuple[Tensor, Tensor]:
    return torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3) * 2 + 1


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_written_arguments_are_those_of_eager(program: Callable[..., Any], dynamic: bool) -> None:
    assert_as_eager(program, *arguments(), dynamic=dynamic)


def test_two_views_are_copied_with_their_base_once() -> None:
    graphs = assert_as_eager(with_two_views_of_one_base, *arguments())
    (call,) = calls(graphs.forward[0], "auto_functionalized_v2")
    assert len(call.kwargs["_all_bases"]) == 1  # type: ignore[arg-type]
    assert (call.kwargs["_x_base_index"], call.kwargs["_z_base_index"]) == (0, 0)


def test_an_operator_that_writes_to_a_list_is_called_once() -> None:
    graphs = assert_as_eager(with_lists_of_one_base, *arguments())
    assert len(calls(graphs.forward[0], "auto_functionalized_v2")) == 1


def test_an_exported_program_writes_to_its_buffer_again_in_each_call() -> None:
    class Counter(torch.nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            torch.ops.written.all(self.count, [], None)
            return self.count + x

    x = torch.ones(3)
    exported = export(Counter(), (x,)).run_decompositions({})
    assert len(calls(exported.graph_module, "auto_functionalized_v2")) == 1
    ours, theirs = exported.module(), Counter()
    assert_same([ours(x) for _ in range(3)], [theirs(x) for _ in range(3)])
