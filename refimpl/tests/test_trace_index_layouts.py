"""Strides of results that are read at indices, over random layouts: worked out, traced and compiled, against eager's."""

from __future__ import annotations

import random
from typing import Any

import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace.layouts.indexing import indexed_strides
from refimpl.trace.make_fx import make_fx

aten = torch.ops.aten


def _laid_out(rng: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in a random order of dimensions, some with gaps or expanded."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim] * rng.choice([1, 1, 1, 2])
    for dim, size in enumerate(shape):
        if rng.random() < 0.12:
            strides[dim] = 0
        elif size == 1 and rng.random() < 0.3:
            strides[dim] = rng.choice([1, 2, 3, 7])
    return torch.zeros(step, dtype=dtype).as_strided(shape, strides)


def _case(rng: random.Random) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    shape = [rng.choice([1, 2, 3]) for _ in range(rng.randrange(1, 5))]
    common = [rng.choice([1, 2, 3]) for _ in range(rng.randrange(0, 4))]
    indices: list[torch.Tensor | None] = [None] * len(shape)
    for dim in rng.sample(range(len(shape)), rng.randrange(1, len(shape) + 1)):
        own = [1 if rng.random() < 0.2 else size for size in common[rng.choice([0, 0, len(common) // 2]) :]]
        indices[dim] = _laid_out(rng, own, torch.int64)
    return _laid_out(rng, shape, torch.float32), indices


def test_the_kernels_order_is_known() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        x, indices = _case(rng)
        expected = aten.index.Tensor(x, indices)
        assert indexed_strides(aten.index.Tensor, expected.shape, (x, indices)) == expected.stride(), (x, indices)


def test_other_operators_and_dtypes_are_left_to_their_fake_kernels() -> None:
    x, index = torch.zeros(1, 4, 2), torch.zeros(2, dtype=torch.int64)
    assert indexed_strides(aten.index.Tensor, (1, 2, 2), (x, [None, index])) == (4, 2, 1)
    assert indexed_strides(aten.index.Tensor, (1, 2, 2), (x, [None, index.int()])) is None
    assert indexed_strides(aten.index.Tensor, (1, 0, 2), (x, [None, index[:0]])) is None
    assert indexed_strides(aten.index_select.default, (1, 2, 2), (x, 1, index)) is None


def test_traced_and_compiled_results_have_eagers_strides() -> None:
    rng = random.Random(1)
    for _ in range(25):
        x, indices = _case(rng)

        given = [index for index in indices if index is not None]

        def program(x: torch.Tensor, *given: Any, indices: Any = indices) -> torch.Tensor:
            rest = iter(given)
            return aten.index.Tensor(x, [None if index is None else next(rest) for index in indices])

        expected = program(x, *given).stride()
        graph = make_fx(program, tracing_mode="fake")(x, *given)
        (returned,) = graph.graph.find_nodes(op="output")[0].args
        assert returned.meta["val"].stride() == expected, (x, indices)

    def sliced(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[:, index]

    x, index = torch.arange(8.0).as_strided((1, 4, 2), (4, 1, 4)), torch.arange(2)
    result = compile_aot(sliced, backend=compile_graph, decompositions=codegen_decompositions())(x, index)
    assert torch.equal(result, sliced(x, index))
    assert result.stride() == sliced(x, index).stride()
