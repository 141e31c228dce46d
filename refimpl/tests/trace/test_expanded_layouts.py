"""Expanded tensors lie in traces as in eager mode, along sizes of 1 as well."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from refimpl.trace.make_fx import make_fx

SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (1, 1), (1, 3), (3, 1)]
NEW: list[tuple[int, ...]] = [(), (1,), (2,), (2, 1), (1, 2), (5, 1, 1)]  # dimensions


def operands(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Row-major, in reversed order, with gaps, and without steps."""
    gaps = torch.ones([2 * size for size in shape])[tuple(slice(None, None, 2) for _ in shape)]
    dims = list(range(len(shape) - 1, -1, -1))
    return [torch.ones(shape), torch.ones(shape[::-1]).permute(dims), gaps, torch.ones(()).expand(shape)]


@pytest.mark.fractional
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_expanded_tensors_have_the_kernel_s_strides(shape: tuple[int, ...], mode: str) -> None:
    five = torch.ones(5)
    for new, kept in itertools.product(NEW, itertools.product(*[(n,) if n > 1 else (1, 3) for n in shape])):
        size = [*new, *kept]

        def program(x: torch.Tensor, five: torch.Tensor, size: Any = size) -> torch.Tensor:
            return x.expand([five.shape[0] if n == 5 else n for n in size]).sin()

        for x in operands(shape):
            graph = make_fx(program, tracing_mode=mode)(x, five)
            (expanded,) = [
                node.meta["val"] for node in graph.graph.nodes if node.target is torch.ops.aten.expand.default
            ]
            given = next(node.meta["val"] for node in graph.graph.nodes)
            assert [int(step) for step in expanded.stride()] == list(x.expand(size).stride()), (
                x.shape,
                x.stride(),
                size,
            )
            assert expanded.untyped_storage()._cdata == given.untyped_storage()._cdata
