"""topk of few results, as dependent reductions in one kernel."""

from __future__ import annotations

import pytest
import torch

from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.codegen.checks import Compiler, check, check_levels

NAN, INF = float("nan"), float("inf")


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(torch.Size(shape).numel(), generator=generator).view(shape).to(dtype).requires_grad_(grad)


def _check_selection(x: torch.Tensor, k: int, dim: int, *, largest: bool) -> Compiler:
    """Values are eager's; places are some where these are, each once, in order where values are equal."""
    compiler = Compiler()
    values, places = compiler.compile(lambda x: x.topk(k, dim, largest=largest))(x)
    expected = x.topk(k, dim, largest=largest)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.gather(dim, places), values, rtol=0, atol=0, equal_nan=True)
    rows, found = places.movedim(dim, -1).reshape(-1, k).tolist(), values.movedim(dim, -1).reshape(-1, k)
    for row, of in zip(rows, found, strict=True):
        assert len(set(row)) == k
        for position in range(k - 1):
            is_same = of[position] == of[position + 1] or bool(of[position : position + 2].isnan().all())
            assert not is_same or row[position] < row[position + 1]
    return compiler


@pytest.mark.fractional
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "k", "dim"), [((6, 40), 1, 1), ((6, 40), 8, 1), ((9, 5), 3, 0), ((2, 7, 3), 4, 1), ((3, 5000), 2, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_values_in_order(shape: tuple[int, ...], k: int, dim: int, dtype: torch.dtype, *, largest: bool) -> None:
    compiler = _check_selection(_x(*shape, dtype=dtype), k, dim, largest=largest)
    assert len(compiler.graphs[0].kernels) == 1


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_equal_values_infinities_and_nan(dtype: torch.dtype, *, largest: bool) -> None:
    rows = torch.tensor(
        [
            [NAN, 1, -INF, 2, NAN, INF, 3], [-INF] * 7, [NAN] * 7, [INF, NAN, INF, NAN, NAN, NAN, NAN], [INF] * 7,
            [2, 2, 1, 2, 2, 1, 1], [-INF, NAN, -INF, 0, -0.0, 0, 1],
        ],
        dtype=dtype,
    )  # fmt: skip
    _check_selection(rows, 7, 1, largest=largest)


def test_the_least_and_the_greatest_integers() -> None:
    info = torch.iinfo(torch.int64)
    rows = torch.tensor([[info.min, info.max, info.min, 0, info.max]])
    for largest in (True, False):
        _check_selection(rows, 5, 1, largest=largest)


def test_gradients_and_what_is_around_are_fused() -> None:
    compiler = check(lambda x: x.softmax(-1).topk(2), (_x(6, 40) / 40).requires_grad_(), tolerance=1e-5)
    assert len(compiler.graphs[0].kernels) == 1


def test_levels_agree() -> None:
    for largest in (True, False):
        compiler = _check_selection(_x(5, 37), 4, 1, largest=largest)
        check_levels(compiler.recorded)


def test_one_compilation_serves_all_numbers_of_rows() -> None:
    compiler = Compiler()
    compiled = compiler.compile(lambda x: x.topk(2, 0), dynamic=True)
    for shape in ((6, 40), (9, 3), (2, 5)):
        x = _x(*shape)
        for actual, expected in zip(compiled(x), x.topk(2, 0), strict=True):
            assert torch.equal(actual, expected)
    assert len(compiler.graphs) == 1


@pytest.mark.parametrize(
    ("k", "options", "reason"), [(9, {}, "9 results"), (2, {"sorted": False}, "in any order"), (0, {}, "0 results")]
)
def test_the_rest_is_left(k: int, options: dict[str, bool], reason: str) -> None:
    with pytest.raises(UnsupportedByRefimpl, match=reason):
        Compiler().compile(lambda x: x.topk(k, **options))(_x(4, 20))
