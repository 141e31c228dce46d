"""Tensors as specs of `oracle.inputs`: shape, dtype, geometry (strides, offset, sharing) and values.

Everything is data: the tensor itself is built where the program runs. Each fill has a seed of its own, so that leaving an input
out of a program does not change the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fuzz.draw import Draw

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
COMPLEX = ("complex64", "complex128")
DTYPE_WEIGHTS: dict[str, float] = {
    "float32": 14, "float64": 3, "int64": 3, "bool": 1.5, "bfloat16": 1.5, "int32": 1.5, "float16": 1,
    "complex64": 0.8, "uint8": 0.8, "int8": 0.5, "int16": 0.4, "complex128": 0.3,
}  # fmt: skip
LAYOUT_WEIGHTS: dict[str, float] = {
    "contiguous": 10, "transposed": 2.5, "sliced": 2, "offset": 1.5, "channels_last": 1.5, "expanded": 1, "gapped": 0.7,
    "overlapping": 0.3,
}  # fmt: skip
# How elements are drawn. "plain" is what most kernels are tried on; the others are where they go wrong.
VALUE_WEIGHTS: dict[str, float] = {
    "plain": 12,
    "ties": 3,
    "special": 1.5,
    "finite_special": 1.5,
    "unit": 1.5,
    "tiny": 0.5,
    "large": 1,
}
NORMAL_DOMAINS = ("any", "positive", "unit", "nonzero", "small", "probability")
_LARGEST_SEED = (1 << 31) - 1


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_inexact(dtype: str) -> bool:
    return is_float(dtype) or dtype.startswith("complex")


def draw_dtype(draw: Draw, allowed: Sequence[str] = ()) -> str:
    """A dtype by how common it is, among the allowed ones. Raises ValueError when none is."""
    return draw.weighted({name: w for name, w in DTYPE_WEIGHTS.items() if not allowed or name in allowed})


def draw_fill(draw: Draw, dtype: str, *, domain: str = "any") -> dict[str, Any]:
    """Contents. `domain` narrows them: "positive" (> 0), "unit" (inside -1..1), "nonzero", "small" (|x| < 4), "probability"
    (inside 0..1), "index:N" (0 <= x < N)."""
    seed = draw.integer(0, _LARGEST_SEED)
    if domain.startswith("index:"):
        return {"kind": "integers", "low": 0, "high": max(1, int(domain[6:])), "seed": seed}
    if dtype == "bool":
        return {"kind": "bool", "p": 0.5, "seed": seed}
    if not is_inexact(dtype):
        return _integer_fill(draw, dtype, domain, seed)
    match domain:
        case "positive":
            return {"kind": "uniform", "low": 0.1, "high": 3, "seed": seed}
        case "unit":
            return {"kind": "uniform", "low": -0.95, "high": 0.95, "seed": seed}
        case "probability":
            return {"kind": "uniform", "low": 0.05, "high": 0.95, "seed": seed}
        case "nonzero":
            return {"kind": "uniform", "low": 0.5, "high": 3, "seed": seed}
        case "small":
            return {"kind": "uniform", "low": -3, "high": 3, "seed": seed}
        case _:
            pass
    kind = draw.weighted(VALUE_WEIGHTS)
    match kind:
        case "ties":
            return {"kind": "integers", "low": -3, "high": 4, "seed": seed}
        case "special" | "finite_special":
            return {"kind": "special", "finite": kind == "finite_special", "seed": seed}
        case "unit":
            return {"kind": "uniform", "low": -1, "high": 1, "seed": seed}
        case "tiny" | "large":
            return {"kind": "normal", "std": 1e-3 if kind == "tiny" else 100, "seed": seed}
        case _:
            return {"kind": "normal", "seed": seed}


def _integer_fill(draw: Draw, dtype: str, domain: str, seed: int) -> dict[str, Any]:
    is_unsigned = dtype.startswith("uint")
    if domain in ("positive", "nonzero", "probability"):
        return {"kind": "integers", "low": 1, "high": 10, "seed": seed}
    if domain == "any" and draw.chance(0.1):
        return {"kind": "special", "seed": seed}
    return {"kind": "integers", "low": 0 if is_unsigned else -9, "high": 10, "seed": seed}


def draw_spec(
    draw: Draw,
    shape: Sequence[int],
    dtype: str,
    *,
    domain: str = "any",
    requires_grad: bool = False,
    layouts: Sequence[str] = (),
) -> dict[str, Any]:
    """A tensor of this shape and dtype in a drawn geometry. `layouts` narrows the geometries (LAYOUT_WEIGHTS)."""
    spec: dict[str, Any] = {"$": "tensor", "shape": list(shape), "dtype": dtype}
    layout = draw.weighted({name: w for name, w in LAYOUT_WEIGHTS.items() if not layouts or name in layouts})
    spec.update(_geometry(draw, tuple(shape), layout))
    spec["fill"] = draw_fill(draw, dtype, domain=domain)
    if requires_grad and is_inexact(dtype):
        spec["requires_grad"] = True
    return spec


def _geometry(draw: Draw, shape: tuple[int, ...], layout: str) -> dict[str, Any]:
    """stride and offset; nothing for contiguous, and where the layout makes no sense for the shape."""
    rank = len(shape)
    match layout:
        case "transposed" if rank >= 2:
            order = list(range(rank))
            first = draw.integer(0, rank - 2)
            last = draw.integer(first + 1, rank - 1)
            order[first], order[last] = order[last], order[first]
            return {"stride": _strides_in_order(shape, order)}
        case "sliced" if rank >= 1:
            at = draw.integer(0, rank - 1)
            wide = [size * 2 if i == at else size for i, size in enumerate(shape)]
            stride = contiguous_stride(wide)
            stride[at] *= 2
            return {"stride": stride, "offset": draw.integer(0, 1) * (stride[at] // 2)}
        case "offset":
            return {"offset": draw.choice((1, 3, 8))}
        case "channels_last" if rank in (4, 5):
            return {"memory_format": "channels_last" if rank == 4 else "channels_last_3d"}
        case "expanded" if rank >= 1:
            at = draw.integer(0, rank - 1)
            stride = contiguous_stride([1 if i == at else size for i, size in enumerate(shape)])
            stride[at] = 0
            return {"stride": stride}
        case "gapped" if rank >= 1:
            return {"stride": [step * 2 for step in contiguous_stride(shape)]}
        case "overlapping" if rank >= 2:
            return {"stride": [*([1] * rank)]}
        case _:
            return {}


def contiguous_stride(shape: Sequence[int]) -> list[int]:
    return [math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape))]


def _strides_in_order(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of a tensor whose memory holds the dimensions in this order, the last one densest."""
    stride = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(1, shape[dim])
    return stride
