"""Products with a term that is added, beside eager: what lies in which layout, and products of nothing.

Counterpart: none
"""

from __future__ import annotations

import pytest
import torch

from refimpl.trace.decompositions import decomposition_table

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("beta", [0, 1])
def test_an_outer_product_lies_as_its_sum_with_the_other_term(beta: int, dtype: torch.dtype) -> None:
    ones = torch.ones(4, 4, dtype=dtype)
    vector = ones[0, :2]
    kept = 0
    for x in (
        ones[:2, :2].t(),
        ones[::2, ::2].t(),
        ones[:1, :2].t().expand(2, 2),
        ones[0, 0],
        ones[:2, :1],
        ones[:2, :2],
    ):
        found = decomposition_table[aten.addr.default](x, vector, vector, beta=beta)
        expected = torch.addr(x, vector, vector, beta=beta)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        kept += not expected.is_contiguous()
    assert kept == 2


@pytest.mark.parametrize("shape", [(), (1,), (0,)])
@pytest.mark.parametrize("matrix", [(0, 0), (0, 2)])
def test_a_product_of_nothing_is_left_to_the_operator(matrix: tuple[int, int], shape: tuple[int, ...]) -> None:
    """Which gives the other term back, in a shape of its own."""
    arguments = torch.ones(shape), torch.ones(matrix), torch.ones(matrix[1])
    assert torch.addmv(*arguments).shape == shape
    assert decomposition_table[aten.addmv.default](*arguments) is NotImplemented
