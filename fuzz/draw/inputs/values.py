"""Values of a tensor's elements: fills of `oracle.program.fills`, chosen because kernels may go wrong on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzz.draw.choices import Draw

# How elements are drawn. "plain" values are ordinary; kernels go wrong on the others.
VALUE_WEIGHTS: dict[str, float] = {
    "plain": 12,
    "ties": 2.5,  # few different whole numbers: equal maxima, equal keys, exact quotients
    "halves": 0.7,  # ties of rounding
    "multiples": 0.7,  # multiples of 0.1: quotients that would be integers without the rounding of their operands
    "constant": 0.5,
    "ordered": 0.5,
    "special": 1.2,  # NaN, infinities, signed zeros, denormals, extremes
    "finite_special": 1,
    "infinite": 0.7,  # NaN and infinities without extremes: sums of them do not depend on the order
    "denormal": 0.4,
    "extreme": 0.4,
    "unit": 1.5,
    "tiny": 0.5,
    "large": 1,
}
INTEGER_WEIGHTS: dict[str, float] = {
    "plain": 12,
    "ties": 3,
    "special": 1.5,
    "extreme": 0.7,
    "constant": 0.5,
    "ordered": 1,
}
NORMAL_DOMAINS = ("any", "positive", "unit", "nonzero", "small", "probability")
_LARGEST_SEED = (1 << 31) - 1
_SMALLEST_NORMAL: Mapping[str, float] = {
    "float16": 2.0**-14, "float64": 2.0**-1022, "float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14, "complex128": 2.0**-1022,
}  # fmt: skip
# (largest number, a step below it that the dtype can represent, spacing just above 1)
_LARGEST: Mapping[str, tuple[float, float]] = {
    "float32": (3.4028234663852886e38, 2.0**-23),
    "float64": (1.7976931348623157e308, 2.0**-52),
    "bfloat16": (3.3895313892515355e38, 2.0**-7),
    "float16": (65504.0, 2.0**-10),
    "complex64": (3.4028234663852886e38, 2.0**-23),
    "complex128": (1.7976931348623157e308, 2.0**-52),
    "float8_e4m3fn": (448.0, 2.0**-3),
    "float8_e5m2": (57344.0, 2.0**-2),
}
_INTEGER_BITS: Mapping[str, int] = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8}


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_inexact(dtype: str) -> bool:
    return is_float(dtype) or dtype.startswith("complex")


def draw_fill(draw: Draw, dtype: str, *, domain: str = "any") -> dict[str, Any]:
    """Contents. `domain` narrows them: "positive" (> 0), "unit" (inside -1..1), "nonzero", "small" (|x| < 4), "probability"
    (inside 0..1), "index:N" (0 <= x < N)."""
    seed = draw.integer(0, _LARGEST_SEED)
    if domain.startswith("index:"):
        return {"kind": "integers", "low": 0, "high": max(1, int(domain[6:])), "seed": seed}
    if dtype == "bool":
        return {"kind": "bool", "p": draw.weighted({0.5: 8, 0.1: 1, 0.9: 1, 0: 0.5, 1: 0.5}), "seed": seed}
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
            return _float_fill(draw, dtype, seed)


def _float_fill(draw: Draw, dtype: str, seed: int) -> dict[str, Any]:
    kind = draw.weighted(VALUE_WEIGHTS)
    match kind:
        case "ties":
            return {"kind": "integers", "low": -3, "high": 4, "seed": seed}
        case "halves":
            return {"kind": "choice", "values": [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.5, 0.25], "seed": seed}
        case "multiples":
            return {"kind": "choice", "values": [0.1, 1.0, 0.3, 0.2, -0.1, 0.7, 2.0, -0.3], "seed": seed}
        case "constant":
            return {"kind": "full", "value": draw.choice((1.0, 0.0, -0.0, 0.1, -2.0, 3.0))}
        case "ordered":
            return {"kind": "arange", "start": draw.choice((0, 1, -2)), "step": draw.choice((1, 0.5, -1))}
        case "special" | "finite_special":
            return {"kind": "special", "finite": kind == "finite_special", "seed": seed}
        case "infinite":
            values: list[Any] = ["nan", "inf", "-inf", 1.0, -2.0, 0.5, 3.0, -0.0]
            return {"kind": "choice", "values": values[draw.choice((0, 1)) :], "seed": seed}
        case "denormal":
            smallest = _SMALLEST_NORMAL.get(dtype, 2.0**-126)
            values = [smallest / 2, -smallest / 2, smallest / 4, smallest, 1.0, 0.0, -0.0]
            return {"kind": "choice", "values": values, "seed": seed}
        case "extreme":
            largest, spacing = _LARGEST[dtype]
            values = [largest, -largest, 1.0 + spacing, 1.0 - spacing / 2, 1.0, -0.0, 0.0]
            return {"kind": "choice", "values": values, "seed": seed}
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
    kind = draw.weighted(INTEGER_WEIGHTS) if domain == "any" else "plain"
    match kind:
        case "ties":
            return {"kind": "integers", "low": 0, "high": 3, "seed": seed}
        case "special":
            return {"kind": "special", "seed": seed}
        case "extreme":
            bits = _INTEGER_BITS[dtype]
            top = (1 << bits) - 1
            bottom = 0 if is_unsigned else -top - 1
            return {"kind": "choice", "values": [top, bottom, top - 1, bottom + 1, 1, 0], "seed": seed}
        case "constant":
            return {"kind": "full", "value": draw.choice((0, 1, 5))}
        case "ordered":
            return {"kind": "arange", "start": draw.choice((0, 1, 5)), "step": 1}
        case _:
            return {"kind": "integers", "low": 0 if is_unsigned else -9, "high": 10, "seed": seed}
