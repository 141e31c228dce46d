"""Views have the strides of eager in traces, along sizes of 1 too: programs ask, and kernels choose layouts by them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import refimpl
from refimpl.trace.layouts import viewed_strides

aten = torch.ops.aten


def _laid_out(draw: random.Random) -> torch.Tensor:
    sizes = [draw.choice([1, 1, 2, 3, 4]) for _ in range(draw.randrange(5))]
    strides, step = [0] * len(sizes), 1
    for dim in draw.sample(range(len(sizes)), len(sizes)) if draw.random() < 0.5 else reversed(range(len(sizes))):
        strides[dim] = step
        step *= sizes[dim] * draw.choice([1, 1, 1, 1, 2])
    strides = [draw.choice([t, 0, 2, 7]) if n == 1 else t for n, t in zip(sizes, strides, strict=True)]
    return torch.empty(1000).as_strided(sizes, strides)


def _other_shape(draw: random.Random, left: int) -> list[int]:
    sizes: list[int] = []
    while left > 1:
        sizes.append(draw.choice([n for n in range(2, left + 1) if left % n == 0]))
        left //= sizes[-1]
    for _ in range(draw.randrange(4)):
        sizes.insert(draw.randrange(len(sizes) + 1), 1)
    return sizes


def test_strides_are_those_of_the_kernel() -> None:
    draw = random.Random(0)
    checked = 0
    for _ in range(5000):
        x = _laid_out(draw)
        shape = _other_shape(draw, x.numel())
        try:
            expected = x.view(shape).stride()
        except RuntimeError:  # dimensions that are not one in memory
            continue
        if 1 in shape:
            assert viewed_strides(aten.view.default, shape, (x, shape)) == expected, (x.shape, x.stride(), shape)
            checked += 1
    assert checked > 2000


def views(x: torch.Tensor) -> tuple[Any, ...]:
    parts = (
        x.view(1, *x.shape[2:]),
        x.flatten(0, 1),
        x.unflatten(0, (1, 1)),
        x[..., None].squeeze(-1).reshape(x.shape),
    )
    return *parts, *(part * 2 for part in parts), torch.cat([parts[0].permute(1, 2, 0) * 2] * 2, 2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_a_program_is_told_the_strides_of_a_view(backend: str, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        results = views(x)
        return *results, [result.stride() for result in results]

    compiled = refimpl.compile(program, backend=backend, dynamic=dynamic)
    for sizes in ((5, 4), (6, 3)):
        x = torch.rand(1, 1, *sizes).transpose(2, 3)
        expected, actual = program(x), compiled(x)
        assert actual[-1] == expected[-1]
        assert [result.stride() for result in actual[:-1]] == expected[-1]
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_views_keep_what_is_lazy(tracing: str) -> None:
    x = torch.rand(1, 2, 3, dtype=torch.complex64).conj().mT
    graph = refimpl.make_fx(lambda x: x.view(1, 1, 3, 2), None, tracing)(x).graph
    (view,) = [node for node in graph.nodes if node.target is aten.view.default]
    value, expected = view.meta["val"], x.view(1, 1, 3, 2)
    assert (value.is_conj(), tuple(map(int, value.stride()))) == (True, expected.stride())
