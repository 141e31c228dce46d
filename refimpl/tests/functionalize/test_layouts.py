"""What is computed from memory that was written sees the strides of that memory, not those of the value that was written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import refimpl
from refimpl.functionalize import functionalize_graph


def where_into(x: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    """What is computed row by row lies column by column afterwards: in memory that lay so before."""
    return torch.where(mask, x, x, out=out)


@pytest.mark.parametrize("strategy", ["table", "scatter"])
def test_numbers_are_drawn_in_the_order_of_the_memory_that_was_written(strategy: Any) -> None:
    def program(x: Tensor, mask: Tensor, out: Tensor) -> Any:
        written = where_into(x, mask, out)
        return torch.rand_like(written), torch.native_dropout(written, 0.5, True)[0]

    x, mask, out = torch.ones(1, 1), torch.ones(4, 3, dtype=torch.bool), torch.zeros(3, 4).t()
    graph = functionalize_graph(refimpl.make_fx(program)(x, mask, out), strategy=strategy).graph_module
    torch.manual_seed(3)
    expected = program(x, mask, out.clone())
    torch.manual_seed(3)
    for drawn, drawn_in_graph in zip(expected, graph(x, mask, out.clone()), strict=True):
        assert torch.equal(drawn, drawn_in_graph)
        assert drawn.stride() == drawn_in_graph.stride() == (1, 4)


def test_results_of_lists_keep_the_strides_of_the_memory_that_was_written() -> None:
    def program(x: Tensor, mask: Tensor, out: Tensor) -> Any:
        return torch._foreach_div([x, where_into(x, mask, out)], 2.0)

    x, mask, out = torch.ones(1, 1), torch.ones(4, 3, dtype=torch.bool), torch.zeros(3, 4).t()
    graph = functionalize_graph(refimpl.make_fx(program)(x, mask, out)).graph_module
    assert [part.stride() for part in graph(x, mask, out.clone())] == [(1, 1), (1, 4)]


@pytest.mark.parametrize("dims", [(1, 2, 0), (2, 0, 1), (-1, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 3, 3)])
def test_a_write_through_permuted_dimensions_reaches_the_elements_behind_it(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    """A cycle of three dimensions is not its own inverse; with equal sizes a mistake raises nothing."""

    def program(x: Tensor) -> Tensor:
        view = x.permute(dims)
        view.mul_(torch.arange(1.0, 1 + view.numel()).reshape(view.shape))
        return x + 1

    x = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    every_way: list[dict[str, Any]] = [{}, {"strategy": "scatter"}, {"keeps_views": False}]
    for options in every_way:
        graph = functionalize_graph(refimpl.make_fx(program)(x.clone()), **options).graph_module
        assert torch.equal(graph(x.clone()), program(x.clone()))
