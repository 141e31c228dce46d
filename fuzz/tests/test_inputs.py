"""Tensors as data: every geometry and every kind of value is drawn, as often as meant, and can be built."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.geometry import overlaps_itself
from fuzz.draw.inputs.shapes import MAX_RANK, draw_broadcastable, draw_pool, draw_shape
from fuzz.draw.inputs.specs import DTYPE_WEIGHTS, draw_dtype, draw_spec
from fuzz.draw.inputs.strides import LAYOUT_WEIGHTS, draw_geometry, extent
from fuzz.draw.inputs.values import INTEGER_WEIGHTS, NORMAL_DOMAINS, VALUE_WEIGHTS, draw_fill
from oracle.program.inputs import decode

SHAPE = {"odd_ones": [3, 1, 4], "channels_last": [2, 3, 4, 5]}
SPECS = 3000


def built(spec: dict[str, Any]) -> torch.Tensor:
    return decode(spec, seed=0)


def filled(fill: dict[str, Any], dtype: str, count: int = 200) -> torch.Tensor:
    return built({"$": "tensor", "shape": [count], "dtype": dtype, "fill": fill})


@pytest.fixture(scope="module")
def specs() -> list[dict[str, Any]]:
    draw = RandomDraw(3)
    return [
        draw_spec(
            draw, draw_shape(draw, draw_pool(draw), max_numel=512), draw_dtype(draw), requires_grad=draw.chance(0.3)
        )
        for _ in range(SPECS)
    ]


def test_every_spec_can_be_built(specs: list[dict[str, Any]]) -> None:
    for spec in specs:
        tensor = built(spec)
        assert [*tensor.shape] == spec["shape"]
        assert str(tensor.dtype) == f"torch.{spec['dtype']}"
        assert tensor.requires_grad is spec.get("requires_grad", False)


def test_each_fill_has_a_seed_of_its_own(specs: list[dict[str, Any]]) -> None:
    seeds = [spec["fill"]["seed"] for spec in specs if "seed" in spec["fill"]]
    assert len(set(seeds)) > 0.99 * len(seeds)


@pytest.mark.parametrize("dtype", DTYPE_WEIGHTS)
def test_dtypes_are_drawn_as_often_as_weighed(dtype: str, specs: list[dict[str, Any]]) -> None:
    expected = DTYPE_WEIGHTS[dtype] / sum(DTYPE_WEIGHTS.values())
    seen = sum(spec["dtype"] == dtype for spec in specs) / SPECS
    assert abs(seen - expected) < 4 * math.sqrt(expected / SPECS)


@pytest.mark.parametrize(
    ("what", "least", "most"),
    [
        (lambda t: t.numel() == 0, 0.01, 0.10),
        (lambda t: t.dim() == 0, 0.03, 0.12),
        (lambda t: t.dim() >= 5, 0.01, 0.12),
        (lambda t: t.dim() == MAX_RANK, 0.005, 0.06),
        (lambda t: 1 in t.shape, 0.10, 0.40),
        (lambda t: not t.is_contiguous(), 0.25, 0.60),
        (lambda t: t.storage_offset() > 0, 0.08, 0.30),
        (lambda t: overlaps_itself(t), 0.02, 0.12),
        (lambda t: any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)), 0.02, 0.12),
        (lambda t: t.is_conj() or t.is_neg(), 0.003, 0.05),
        (lambda t: t.is_floating_point() and bool(t.float().isnan().any()), 0.01, 0.12),
        (lambda t: t.is_complex(), 0.01, 0.08),
    ],
    ids=["empty", "0-d", "rank 5", "rank 6", "size 1", "strided", "offset", "overlap", "expanded", "bits", "nan", "complex"],
)  # fmt: skip
def test_how_often_each_feature_is_drawn(what: Any, least: float, most: float, specs: list[dict[str, Any]]) -> None:
    assert least < sum(bool(what(built(spec))) for spec in specs) / SPECS < most


@pytest.mark.parametrize("layout", LAYOUT_WEIGHTS)
def test_each_layout_gives_its_geometry(layout: str) -> None:
    shape = SHAPE.get(layout, [3, 4])
    fields = draw_geometry(RandomDraw(0), shape, "complex64", layouts=(layout,))
    tensor = built({"$": "tensor", "shape": shape, "dtype": "complex64", **fields})
    checks = {
        "contiguous": tensor.is_contiguous(),
        "transposed": tensor.stride() == (1, 3),
        "permuted": sorted(tensor.stride()) != [0, 0],
        "sliced": not tensor.is_contiguous() and not overlaps_itself(tensor),
        "padded": tensor.stride(0) > 4 and tensor.stride(1) == 1,
        "offset": tensor.storage_offset() > 0,
        "channels_last": tensor.is_contiguous(memory_format=torch.channels_last),
        "expanded": 0 in tensor.stride(),
        "repeated": tensor.stride() == (0, 0),
        "gapped": tensor.stride() == (8, 2),
        "odd_ones": tensor.is_contiguous(),
        "overlapping": overlaps_itself(tensor),
        "conjugated": tensor.is_conj(),
        "negated": tensor.is_neg(),
    }
    assert checks[layout]


@pytest.mark.parametrize("layout", LAYOUT_WEIGHTS)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (1, 1, 1)], ids=str)
def test_layouts_of_degenerate_shapes(layout: str, shape: tuple[int, ...]) -> None:
    fields = draw_geometry(RandomDraw(0), shape, "float32", layouts=(layout,))
    assert tuple(built({"$": "tensor", "shape": [*shape], "dtype": "float32", **fields}).shape) == shape


def test_the_extent_is_where_the_last_element_ends() -> None:
    assert extent((3, 4), (8, 2)) == 1 + 2 * 8 + 3 * 2
    assert extent((3, 4), (0, 1), 5) == 9
    assert extent((0, 4), (4, 1), 5) == 5


# ---------------------------------------------------------------------------------------------------------------- values


def kinds_of(dtype: str) -> Counter[str]:
    draw = RandomDraw(5)
    return Counter(str(sorted(draw_fill(draw, dtype).items())[:-1]) for _ in range(2000))


@pytest.mark.parametrize(("dtype", "weights"), [("float32", VALUE_WEIGHTS), ("int32", INTEGER_WEIGHTS)])
def test_every_kind_of_value_is_drawn(dtype: str, weights: dict[str, float]) -> None:
    assert len(kinds_of(dtype)) >= len(weights)


@pytest.mark.parametrize("dtype", DTYPE_WEIGHTS)
def test_every_fill_can_be_built(dtype: str) -> None:
    draw = RandomDraw(7)
    for _ in range(150):
        assert filled(draw_fill(draw, dtype), dtype, 20).numel() == 20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "uint8"])
@pytest.mark.parametrize("domain", [domain for domain in NORMAL_DOMAINS if domain != "any"])
def test_domains_are_kept(domain: str, dtype: str) -> None:
    draw = RandomDraw(9)
    for _ in range(30):
        values = filled(draw_fill(draw, dtype, domain=domain), dtype).double()
        if domain == "positive":
            assert values.min() > 0
        elif domain == "nonzero":
            assert values.abs().min() > 0
        elif dtype in ("float32", "bfloat16"):
            low, high = {"unit": (-1, 1), "small": (-4, 4), "probability": (0, 1)}[domain]
            assert low < values.min() <= values.max() < high


def test_index_domains_are_kept() -> None:
    draw = RandomDraw(9)
    values = filled(draw_fill(draw, "int64", domain="index:5"), "int64")
    assert set(values.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "complex64", "complex128"])
def test_denormals_and_extremes_are_those_of_the_dtype(dtype: str) -> None:
    draw = RandomDraw(11)
    kind = getattr(torch, dtype)
    info = torch.finfo(kind.to_real() if kind.is_complex else kind)
    seen: set[float] = set()
    for _ in range(400):
        fill = draw_fill(draw, dtype)
        if fill["kind"] == "choice":
            seen.update(filled(fill, dtype, 50).to(torch.complex128).real.tolist())
    assert info.smallest_normal / 2 in seen  # not flushed, not rounded to zero
    assert info.max in seen
    assert 1.0 + info.eps in seen
    assert 0.5 in seen


def test_shapes_that_broadcast_do() -> None:
    draw = RandomDraw(13)
    for _ in range(300):
        shape = draw_shape(draw, (2, 3, 5), max_numel=512)
        assert torch.broadcast_shapes(shape, draw_broadcastable(draw, shape)) == torch.Size(shape)


def test_shapes_are_as_small_as_asked_for() -> None:
    draw = RandomDraw(15)
    assert all(math.prod(draw_shape(draw, draw_pool(draw), max_numel=64)) <= 64 for _ in range(500))
