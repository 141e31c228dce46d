"""Layouts of tensors: strides, offsets, memory formats, conjugate and negative bits, as fields of a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzz.draw.choices import Draw

Fields = dict[str, Any]
LAYOUT_WEIGHTS: dict[str, float] = {
    "contiguous": 10,
    "transposed": 2.2,  # two dimensions swapped
    "permuted": 0.7,  # any order of the dimensions in memory
    "sliced": 2,  # every second element of a dimension
    "padded": 1,  # rows that are longer in memory than in the tensor
    "offset": 1.5,
    "channels_last": 1.5,
    "expanded": 1,  # one dimension of stride 0
    "repeated": 0.2,  # all dimensions of stride 0
    "gapped": 0.7,  # no two elements are adjacent in memory
    "odd_ones": 0.5,  # dimensions of size 1 with arbitrary strides
    "overlapping": 0.3,  # windows over one row
    "conjugated": 0.6,  # the conjugate bit; complex only
    "negated": 0.15,  # the negative bit
}
# Layouts that depend on the dtype and not on strides.
_BITS: Mapping[str, str] = {"conjugated": "conj", "negated": "neg"}


def draw_geometry(draw: Draw, shape: Sequence[int], dtype: str, *, layouts: Sequence[str] = ()) -> Fields:
    """The fields of a spec for a layout; none for contiguous. `layouts` narrows the choice."""
    rank = len(shape)
    weights = {
        name: weight
        for name, weight in LAYOUT_WEIGHTS.items()
        if (not layouts or name in layouts) and _makes_sense(name, rank, shape, dtype)
    }
    layout = draw.weighted(weights) if weights else "contiguous"
    if layout in _BITS:
        return {_BITS[layout]: True}
    rule = _RULES.get(layout)
    return rule(draw, tuple(shape)) if rule is not None else {}


def contiguous_stride(shape: Sequence[int]) -> list[int]:
    return [math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape))]


def extent(shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> int:
    """The number of storage elements up to the tensor's last element."""
    if 0 in shape:
        return offset
    return offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _makes_sense(layout: str, rank: int, shape: Sequence[int], dtype: str) -> bool:
    match layout:
        case "transposed" | "permuted" | "overlapping" | "padded":
            return rank >= 2
        case "sliced" | "expanded" | "repeated" | "gapped":
            return rank >= 1
        case "channels_last":
            return rank in (4, 5)
        case "odd_ones":
            return 1 in shape
        case "conjugated":
            return dtype.startswith("complex")
        case "negated":
            return dtype.startswith(("float32", "float64", "complex"))
        case _:
            return True


def _transposed(draw: Draw, shape: tuple[int, ...]) -> Fields:
    order = list(range(len(shape)))
    first = draw.integer(0, len(shape) - 2)
    last = draw.integer(first + 1, len(shape) - 1)
    order[first], order[last] = order[last], order[first]
    return {"stride": _strides_in_order(shape, order)}


def _permuted(draw: Draw, shape: tuple[int, ...]) -> Fields:
    left = list(range(len(shape)))
    order = []
    while left:
        order.append(left.pop(draw.integer(0, len(left) - 1)))
    return {"stride": _strides_in_order(shape, order)}


def _sliced(draw: Draw, shape: tuple[int, ...]) -> Fields:
    at = draw.integer(0, len(shape) - 1)
    stride = contiguous_stride([size * 2 if i == at else size for i, size in enumerate(shape)])
    stride[at] *= 2
    return {"stride": stride, "offset": draw.integer(0, 1) * (stride[at] // 2)}


def _padded(draw: Draw, shape: tuple[int, ...]) -> Fields:
    at = draw.integer(1, len(shape) - 1)
    more = draw.choice((1, 2, 5))
    stride = contiguous_stride([size + more if i == at else size for i, size in enumerate(shape)])
    return {"stride": stride, "offset": draw.choice((0, 0, stride[at]))}


def _offset(draw: Draw, shape: tuple[int, ...]) -> Fields:
    return {"offset": draw.choice((1, 3, 8))}


def _channels_last(draw: Draw, shape: tuple[int, ...]) -> Fields:
    return {"memory_format": "channels_last" if len(shape) == 4 else "channels_last_3d"}


def _expanded(draw: Draw, shape: tuple[int, ...]) -> Fields:
    dims = [i for i, size in enumerate(shape) if size != 1] or list(range(len(shape)))
    at = draw.choice(dims)
    stride = contiguous_stride([1 if i == at else size for i, size in enumerate(shape)])
    stride[at] = 0
    return {"stride": stride}


def _repeated(draw: Draw, shape: tuple[int, ...]) -> Fields:
    return {"stride": [0] * len(shape)}


def _gapped(draw: Draw, shape: tuple[int, ...]) -> Fields:
    return {"stride": [step * 2 for step in contiguous_stride(shape)]}


def _odd_ones(draw: Draw, shape: tuple[int, ...]) -> Fields:
    odd = draw.choice((1, 0, 7, 100))
    stride = contiguous_stride(shape)
    return {"stride": [odd if size == 1 else step for size, step in zip(shape, stride, strict=True)]}


def _overlapping(draw: Draw, shape: tuple[int, ...]) -> Fields:
    return {"stride": [1] * len(shape)}


def _strides_in_order(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of a tensor whose memory holds the dimensions in this order, the last one densest."""
    stride = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(1, shape[dim])
    return stride


_RULES: Mapping[str, Callable[[Draw, tuple[int, ...]], Fields]] = {
    "transposed": _transposed,
    "permuted": _permuted,
    "sliced": _sliced,
    "padded": _padded,
    "offset": _offset,
    "channels_last": _channels_last,
    "expanded": _expanded,
    "repeated": _repeated,
    "gapped": _gapped,
    "odd_ones": _odd_ones,
    "overlapping": _overlapping,
}
