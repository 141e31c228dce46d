"""Fake results of our own rules beside what the real kernels give."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import refimpl
from refimpl.errors import DynamicShapeInTrace

_SIZES = [
    ((5, 3), (5, 2)),
    ((3, 5), (3, 2)),
    ((5, 3), (5,)),
    ((3, 3), (3,)),
    ((2, 5, 3), (2, 5, 2)),
    ((2, 5, 3), (2, 5)),
    ((2, 3, 5), (2, 3)),
    ((2, 3, 5), (1, 3, 2)),
    ((1, 5, 3), (2, 5, 2)),
    ((0, 5, 3), (0, 5, 2)),
    ((0, 3), (0, 2)),
    ((3, 0), (3, 2)),
]


def _metadata(tensors):
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def _traced_metadata(fn, *args):
    returned: Any = refimpl.make_fx(fn, tracing_mode="fake")(*args).graph.output_node().args[0]
    return _metadata([node.meta["val"] for node in returned])


@pytest.mark.fractional
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("sizes", _SIZES, ids=str)
def test_least_squares(sizes, dtype, driver):
    a, b = (torch.randn(size, dtype=dtype) for size in sizes)

    def program(a, b):
        return list(torch.linalg.lstsq(a, b, driver=driver))

    if driver in ("gelsd", "gelss") and sizes[0][-2] > sizes[0][-1]:
        with pytest.raises(DynamicShapeInTrace):
            _traced_metadata(program, a, b)
    elif driver in ("gelsd", "gelss") and 0 in sizes[0]:
        pytest.skip("the real kernel fails")
    else:
        assert _traced_metadata(program, a, b) == _metadata(program(a, b))


@pytest.mark.parametrize("lengths", [(2, 3), (0, 4), (1, 1)])
def test_ctc_loss_of_lengths_that_are_numbers(lengths):
    scores = torch.randn(6, 2, 5).log_softmax(-1)
    targets = torch.randint(1, 5, (2, 4))

    def program(scores, targets):
        return list(torch.ops.aten._ctc_loss(scores, targets, [6, 5], list(lengths)))

    assert _traced_metadata(program, scores, targets) == _metadata(program(scores, targets))


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="no grouped products in this torch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_flat", list(itertools.product([True, False], repeat=2)))
def test_grouped_products(dtype, is_flat):
    flat_a, flat_b = is_flat
    a = torch.randn((8, 8) if flat_a else (2, 8, 8), dtype=dtype)
    b = torch.randn((8, 16) if flat_b else (2, 16, 8), dtype=dtype)
    b = b if flat_b else b.mT
    offsets = torch.tensor([4, 16 if flat_b and not flat_a else 8], dtype=torch.int32)
    given = (a, b, offsets) if flat_a or flat_b else (a, b)
    try:
        expected = [torch._grouped_mm(*given)]  # pyright: ignore[reportArgumentType]
    except RuntimeError as error:
        pytest.skip(str(error))
    assert _traced_metadata(lambda *args: [torch._grouped_mm(*args)], *given) == _metadata(expected)


def test_least_squares_of_too_few_dimensions_is_refused():
    with pytest.raises((RuntimeError, DynamicShapeInTrace)) as caught:
        refimpl.make_fx(torch.linalg.lstsq, tracing_mode="fake")(torch.ones(3), torch.ones(3))
    assert not isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kernel", ["upsample_nearest", "_upsample_nearest_exact"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_nearest_elements_of_an_empty_batch(kernel, dims):
    images = torch.ones([0, *range(2, 2 + dims), 3]).movedim(-1, 1)  # channels last
    overload = getattr(torch.ops.aten, f"{kernel}{dims}d").default

    def program(images):
        return [overload(images, [4] * dims)]

    assert _traced_metadata(program, images) == _metadata(program(images))
