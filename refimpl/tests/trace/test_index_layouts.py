"""Strides of results that are read at indices, over random layouts: worked out, traced and compiled, against eager's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace import eager_facts
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


def _case(rng: random.Random, sizes: Sequence[int] = (1, 2, 3)) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    shape = [rng.choice(sizes) for _ in range(rng.randrange(1, 5))]
    common = [rng.choice(sizes) for _ in range(rng.randrange(0, 4))]
    indices: list[torch.Tensor | None] = [None] * len(shape)
    for dim in rng.sample(range(len(shape)), rng.randrange(1, len(shape) + 1)):
        own = [1 if rng.random() < 0.2 else size for size in common[rng.choice([0, 0, len(common) // 2]) :]]
        indices[dim] = _laid_out(rng, own, torch.int64)
    return _laid_out(rng, shape, torch.float32), indices


def test_smaller_operands_tell_the_order_of_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_facts, "_FEW_ELEMENTS", -1)
    rng = random.Random(0)
    for _ in range(500):
        x, indices = _case(rng, [1, 6, 9])
        expected = aten.index.Tensor(x, indices)
        found = eager_facts.result_strides(aten.index.Tensor, (x, indices), {}, expected)
        assert found in (None, [expected.stride()]), (x.shape, x.stride(), indices)


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
