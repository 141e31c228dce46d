"""Tests of `scan` within vmap in captured code: one graph, with the results and gradients of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl._torch import hop_scan as scan
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import captured_with, each_of


def step(carried: Any, x: Any) -> Any:
    return carried + x.sin(), carried * x


def over_slices(x: Any) -> Any:
    return vmap(lambda row: scan(step, row[0], row))(x)


def reversed_along_columns(x: Any) -> Any:
    return vmap(lambda row: scan(step, row, x, dim=1, reverse=True))(x)


def outputs_without_slices(x: Any) -> Any:
    return vmap(lambda row: scan(lambda carried, a: (carried + a, a * 2), row, x))(x)


def closed_over(x: Any) -> Any:
    return vmap(lambda row: scan(lambda carried, a: (carried + a * row.sum(), carried * a), row[0], row))(x)


def trees(x: Any) -> Any:
    def combine(carried: Any, given: Any) -> Any:
        return {"k": carried["k"] + given[0]}, (carried["k"] * given[1],)

    return vmap(lambda row: scan(combine, {"k": row[0]}, (row, row * 2)))(x)


WHOLE = (over_slices, reversed_along_columns, outputs_without_slices, closed_over, trees)


def seen(function: Callable[..., Any]) -> Any:
    leaf = torch.tensor([[0.3, -1.2, 0.7], [1.5, 0.1, -0.4], [-0.8, 0.9, 2.1]]).requires_grad_()
    result = function(leaf)
    total = sum((each * each.detach().cos()).sum() for each in tree_leaves(result))
    assert isinstance(total, torch.Tensor)
    return result, torch.autograd.grad(total, leaf)


@pytest.mark.fractional
@each_of(*WHOLE)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mapped_scan_is_part_of_one_graph(program: Callable[..., Any], dynamic: bool) -> None:
    captured, recorder, _ = captured_with(program, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(seen(captured), seen(program))
    assert "stepwise_scan" in recorder.targets


@each_of(*WHOLE)
def test_a_traced_mapped_scan_has_the_same_gradients(program: Callable[..., Any]) -> None:
    compiled = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(seen(compiled), seen(program))


def carries_one_for_all(x: Any) -> Any:
    return vmap(lambda row: scan(step, torch.zeros(()), row))(x)


def gradient(x: Any) -> Any:
    return grad(lambda a: scan(step, a[0], a)[1].sum())(x)


@each_of(carries_one_for_all, gradient)
def test_what_eager_does_not_run_is_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError):
        program(torch.ones(3, 3))
    with pytest.raises(Unsupported, match="scan within"):
        captured_with(program, fullgraph=True)[0](torch.ones(3, 3))
