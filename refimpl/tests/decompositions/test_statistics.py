"""Mean and deviation of rows and batches beside eager: numbers whose sums or squares overflow, or vanish.

Counterpart: none
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.decompositions.promotion import statistics_dtype

aten = torch.ops.aten
LARGEST = torch.finfo(torch.float32).max
ROWS = [
    [1e20, -1e20, 1, 2],
    [1e20, 1e20, 1e20, 1e20],
    [1.0] * 7 + [LARGEST],
    [LARGEST] + [1.0] * 7,
    [1, 2, 1e20, 3, 1, 2, 3, 1, 2],
    [1, 2, 3, math.inf],
    [-LARGEST, 1, 2, 3, 1, -LARGEST, -LARGEST, 1, 2],
    [1.0, 2] * 10 + [LARGEST],
    [LARGEST, 1, 2, LARGEST] * 5 + [1],
    [1.0, 2] * 15 + [-1e20],
    [1e20, 2] * 8,
    [1.0, 2, 3] * 17 + [math.inf],
    *([1.0, -2, 3, 0.5] * (length // 4) + [1e20] + [0.5] * (length - 1) for length in (8, 16, 24)),
    *([0.5] * place + [-1e20] + [1.0, 2] * 20 for place in (7, 15, 23, 24)),
]


def test_rows_whose_squares_overflow_are_normalised_as_in_eager() -> None:
    """Zeros where the variance is infinite; NaN where an empty pair meets an infinite square, or an element is infinite."""
    for row in ROWS:
        x = torch.tensor([row])
        arguments = (x, [len(row)], None, None, 1e-5)
        ours = decomposition_table[aten.native_layer_norm.default](*arguments)
        torch.testing.assert_close(ours, torch.native_layer_norm(*arguments), equal_nan=True)


def test_rows_of_symbolic_lengths_are_normalised_as_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:])

    compiled = compile_aot(program, dynamic=True, decompositions=decomposition_table)
    for row in ROWS:
        x = torch.tensor([row, row[::-1]])
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [3, 8, 15, 16, 32, 40])
def test_a_number_whose_square_overflows_is_followed_wherever_it_stands(length: int, dtype: torch.dtype) -> None:
    for place in range(length):
        x = torch.ones(1, length, dtype=dtype)
        x[0, place] = torch.finfo(dtype).max * 0.9
        arguments = (x, [length], None, None, 1e-5)
        expected = torch.native_layer_norm(*arguments)
        for found, value in zip(decomposition_table[aten.native_layer_norm.default](*arguments), expected, strict=True):
            torch.testing.assert_close(found, value, equal_nan=True)


@pytest.mark.parametrize("bias", [None, torch.zeros(3)])
def test_a_weight_of_zero_gives_no_negative_zeros(bias: torch.Tensor | None) -> None:
    x, weight = torch.tensor([[3.0, 0.0, -2.0]]), torch.tensor([3.0, 0.0, -0.0])
    calls = [
        (aten.native_layer_norm.default, (x, [3], weight, bias, 2.0)),
        (aten.native_group_norm.default, (x, weight, bias, 1, 3, 1, 1, 2.0)),
    ]
    for operator, arguments in calls:
        found, expected = decomposition_table[operator](*arguments)[0], operator(*arguments)[0]
        torch.testing.assert_close(found, expected)
        assert found.signbit().tolist() == expected.signbit().tolist()


def test_variances_are_found_in_float64_on_a_cpu_only() -> None:
    for dtype in (torch.float16, torch.float32):
        assert statistics_dtype(dtype, torch.device("cpu")) is torch.float64
        assert statistics_dtype(dtype, torch.device("cuda")) is torch.float32
    assert statistics_dtype(torch.complex64, torch.device("cpu")) is torch.complex64


BATCHES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "rows with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "image": lambda x: torch.stack([x, x], -1),
    "channels last": lambda x: torch.stack([x, x], -1)[..., None].contiguous(memory_format=torch.channels_last),
    "transposed image": lambda x: torch.stack([x, -x], 1).transpose(1, 2),
    "repeated image": lambda x: x[..., None, None].expand(-1, -1, 2, 3),
}


@pytest.mark.parametrize("name", BATCHES)
def test_largest_numbers_of_a_batch_are_averaged_as_in_eager(name: str) -> None:
    """Contiguous images are averaged in float64: means are finite and results zero, where the sums of other layouts overflow."""
    x = torch.tensor([[LARGEST, 1, LARGEST], [LARGEST, 2, 1], [LARGEST, 4, 2], [LARGEST, 5, 3]])
    if name == "image":  # in other orders of the same numbers the sum is infinite or not
        x[2, 0] = -LARGEST
    results = [
        batch_norm(BATCHES[name](x), None, None, None, None, True, 0.1, 1e-5)
        for batch_norm in (decomposition_table[aten.native_batch_norm.default], aten.native_batch_norm.default)
    ]
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BATCHES)
def test_squares_of_a_batch_overflow_and_vanish_as_in_eager(name: str, dtype: torch.dtype) -> None:
    """Squares of float32 are computed in float64 if the tensor is not dense in any order of dimensions, else in float32. Running
    statistics follow.
    """
    x = torch.tensor([[1e20, 1e-30, 1, 1.5e19], [-1e20, -1e-30, 2, -1.5e19], [3e19, 2e-30, 5, 0]]).to(dtype)
    results = []
    for batch_norm in (decomposition_table[aten.native_batch_norm.default], aten.native_batch_norm.default):
        running = [torch.tensor([0.0, 1, 2, 3]), torch.tensor([0.0, 1, 2, 3])]
        results.append((*batch_norm(BATCHES[name](x), None, None, *running, True, 1e-3, 0.0), *running))
    torch.testing.assert_close(*results, equal_nan=True, rtol=1e-5 if dtype is torch.float32 else 0.01, atol=0)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("place", range(5))
def test_a_batch_norm_s_gradient_by_channels_with_gaps_is_left_to_the_operator(place: int, train: bool) -> None:
    """Eager's kernel for contiguous inputs reads what lies in the gaps: no formula of the numbers themselves gives that."""
    x = torch.randn(4, 3)
    gradient = decomposition_table[aten.native_batch_norm_backward.default]
    of_channels = [torch.rand(3) + 1 for _ in range(5)]
    rest = (train, 1e-5, (True, True, True))
    assert gradient(x, x, *of_channels, *rest) is not NotImplemented
    of_channels[place] = torch.tensor([1.0, 7.0, 3.0, 9.0, 5.0])[::2]
    assert gradient(x, x, *of_channels, *rest) is NotImplemented
