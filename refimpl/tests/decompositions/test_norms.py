"""Norms of vectors beside eager: of single elements no power is taken, however large or small they are.

Counterpart: none
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.eager_facts import row_vector_bytes

aten = torch.ops.aten
ORDERS = (2, 3, 0.5, 1, 0, -1, -2, math.inf, -math.inf)
SINGLE = ((8, 1, [1]), (1, 8, [0]), (8, 1, [-1]))
MORE = ((2, 4, [1]), (8, 1, [0, 1]), (8, 1, None))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64], ids=str
)
def test_norms_reach_as_far_as_eagers(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    values = torch.tensor(
        [-limits.tiny * 2, limits.max / 2, 0.0, -0.0, math.nan, math.inf, -math.inf, -3.7], dtype=dtype
    )
    cases = [(values.reshape(rows, columns), dims) for rows, columns, dims in (*SINGLE, *MORE)]
    cases += [(value.reshape(shape), dims) for value in values for shape, dims in (((), None), ((), [0]), ((1,), None))]
    for (x, dims), order, keepdim in itertools.product(cases, ORDERS, (False, True)):
        expected = aten.linalg_vector_norm.default(x, order, dims, keepdim)
        actual = decomposition_table[aten.linalg_vector_norm.default](x, order, dims, keepdim)
        rounding = 2e-2 if dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(actual, expected, rtol=rounding, atol=0, equal_nan=True)
        assert actual.stride() == expected.stride()


@pytest.mark.parametrize("order", [2, 3, 0.5, 1])
def test_distances_of_single_columns_are_found_by_powers(order: float) -> None:
    x = torch.tensor([[2.0**-100], [0.0], [2.0**100]])
    expected = torch.cdist(x, x, order)
    actual = decomposition_table[aten._cdist_forward.default](x, x, order, None)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", [2, 3, 0.5, math.inf])
def test_gradients_of_norms_of_single_elements_are_eagers(order: float) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.linalg.vector_norm(x, order, 1), torch.norm(x[0], p=order)

    results = []
    for called in (function, compile_aot(function, backend=compile_graph, decompositions=codegen_decompositions())):
        x = torch.tensor([[-1e-30], [1e30], [0.0], [-2.5]], requires_grad=True)
        row, first = called(x)
        (row.sum() + first).backward()
        results.append((row, first, x.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("order", ["contiguous", "channels last", "with gaps"])
def test_batch_norm_of_infinite_weights_is_nan_where_eagers_kernel_is(order: str, *, training: bool) -> None:
    """Images without gaps are multiplied by one factor, and a constant is added, which may be inf - inf; others are centred."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 2, 3)
    if order == "channels last":
        x = x.to(memory_format=torch.channels_last)
    elif order == "with gaps":
        x = torch.cat([x, x], 3)[..., ::2]
    weight = torch.tensor([math.inf, -math.inf, 0.0, -1.0, math.nan])
    for bias in (None, torch.tensor([1.0, math.inf, -0.0, 0.0, 2.0])):
        arguments = (x, weight, bias, torch.arange(5.0), torch.ones(5), training, 0.1, 1e-5)
        expected = aten.native_batch_norm.default(*arguments)[0]
        result = decomposition_table[aten.native_batch_norm.default](*arguments)[0]
        torch.testing.assert_close(result, expected, equal_nan=True)
        assert torch.equal(result.signbit() & (result == 0), expected.signbit() & (expected == 0))


@pytest.mark.parametrize("length", [16, 24, 33, 64, 132])
def test_layer_norms_of_the_largest_numbers_are_nan_where_eagers_kernel_is(length: int) -> None:
    """Numbers have one sign, or both if a difference overflows, which eager's order of additions may avoid."""
    draw = random.Random(length)
    for case in range(60):
        largest = [1e38, 3.4e38] if case % 2 else [-1e38, -3.4e38]
        row = [draw.choice([1.0, 2.0, 0.0, *largest[: draw.randint(0, 2)]]) for _ in range(length)]
        if case >= 40:
            row[draw.randrange(length)] *= -1
        x = torch.tensor([row])
        expected = aten.native_layer_norm.default(x, [length], None, None, 1e-5)
        result = decomposition_table[aten.native_layer_norm.default](x, [length], None, None, 1e-5)
        is_far_apart = math.isinf((x.max() - x.min()).item())
        if is_far_apart:
            assert all(part.isnan().all() for part in result[::2])
        else:
            torch.testing.assert_close(result[::2], expected[::2], equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_rows_with_an_infinite_variance_are_zero_or_nan_as_eagers(dtype: torch.dtype) -> None:
    """They are NaN if the sum of the products of tangents and numbers overflows."""
    draw = random.Random(0)
    largest, length = torch.finfo(dtype).max, row_vector_bytes() // dtype.itemsize  # one vector of the kernel
    seen = set()
    for _ in range(200):
        x = torch.tensor([[draw.choice([1.0, 0.5, -0.0, -1.0]) for _ in range(length)]], dtype=dtype)
        x[0, draw.randrange(length)] = largest
        gradient = torch.tensor([[draw.gauss(0, 2) for _ in range(length)]], dtype=dtype)
        _, mean, rstd = aten.native_layer_norm.default(x, [length], None, None, 1e-5)
        arguments = (gradient, x, [length], mean, rstd, None, None, [True, False, False])
        expected = aten.native_layer_norm_backward.default(*arguments)[0]
        result = decomposition_table[aten.native_layer_norm_backward.default](*arguments)[0]
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=0, atol=0)
        seen.add(bool(expected.isnan().any()))
    assert seen == {False, True}
