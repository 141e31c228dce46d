"""Conjugates that stay lazy where eager leaves them so, and those that are computed in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot

_COMBINATIONS = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("lazy", _COMBINATIONS, ids=str)
@pytest.mark.parametrize("product", [torch.dot, torch.vdot, torch.linalg.vecdot, torch.inner], ids=lambda f: f.__name__)
def test_a_product_of_vectors_is_conjugated_lazily(
    product: Callable[..., torch.Tensor], lazy: tuple[bool, bool]
) -> None:
    x, y = torch.tensor([1 + 2j, 3 - 1j]), torch.tensor([2 - 1j, 1 + 4j])
    x, y = (tensor.conj() if is_lazy else tensor for tensor, is_lazy in zip((x, y), lazy, strict=True))
    compiled = compile_aot(product, decompositions=codegen_decompositions())
    expected, result = product(x, y), compiled(x, y)
    torch.testing.assert_close(result, expected)
    assert result.is_conj() == expected.is_conj()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_conjugate_in_place_has_memory_of_its_own(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, out = x.clone(), torch.empty_like(x)
        return made.conj_physical_(), torch.conj_physical(x, out=out)

    x = torch.arange(3.0).to(dtype) * (1 + 2j if dtype.is_complex else 1)
    results = compile_aot(function, backend=compile_graph, decompositions=codegen_decompositions())(x)
    torch.testing.assert_close(results, function(x))
    assert len({tensor.data_ptr() for tensor in (x, *results)}) == 3
