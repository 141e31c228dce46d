"""Tensors as specs of `oracle.program.inputs`: shape, dtype, geometry (`strides`) and values (`values`).

A spec is data; the tensor is built when the program runs. Each fill has its own seed, so that removing an input does not change
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.strides import LAYOUT_WEIGHTS, contiguous_stride, draw_geometry
from fuzz.draw.inputs.values import NORMAL_DOMAINS, VALUE_WEIGHTS, draw_fill, is_float, is_inexact

__all__ = [
    "COMPLEX", "DTYPE_WEIGHTS", "FLOATS", "INTEGERS", "LAYOUT_WEIGHTS", "NORMAL_DOMAINS", "VALUE_WEIGHTS", "contiguous_stride",
    "draw_dtype", "draw_fill", "draw_spec", "is_float", "is_inexact",
]  # fmt: skip

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")  # few operators take them: views, copies, casts, comparisons of bytes
DTYPE_WEIGHTS: dict[str, float] = {
    "float32": 14, "float64": 3, "int64": 3, "bool": 1.5, "bfloat16": 1.5, "int32": 1.5, "float16": 1,
    "complex64": 0.8, "uint8": 0.8, "int8": 0.5, "int16": 0.4, "complex128": 0.3, "float8_e4m3fn": 0.1, "float8_e5m2": 0.1,
}  # fmt: skip


def draw_dtype(draw: Draw, allowed: Sequence[str] = ()) -> str:
    """One of the allowed dtypes, common ones more often. Raises ValueError if there are none."""
    return draw.weighted({name: w for name, w in DTYPE_WEIGHTS.items() if not allowed or name in allowed})


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
    spec.update(draw_geometry(draw, shape, dtype, layouts=layouts))
    if domain not in ("any", "unit", "small"):
        spec.pop("neg", None)  # the negative bit would change the sign of the domain
    spec["fill"] = draw_fill(draw, dtype, domain=domain)
    if requires_grad and is_inexact(dtype) and dtype not in FLOAT8:
        spec["requires_grad"] = True
    return spec
