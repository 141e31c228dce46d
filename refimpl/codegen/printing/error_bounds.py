"""How far results of functions may be from the correctly rounded ones, in ulp: the numerics contract as a table.

Bounds of libdevice's functions are those that NVIDIA documents for the functions of the same names in CUDA (CUDA C++ Programming
Guide, Mathematical Functions, standard functions in single and double precision): the largest differences of wide tests that are
not exhaustive. Half types are computed in float32 and rounded once more, which is right for the operations of IEEE 754 that
float32 has enough bits for, and off by an ulp at most for the others. `python -m refimpl.tests.function_errors` measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from refimpl.codegen.printing.functions import BOUNDS_MESSAGES, COMPARISONS
from refimpl.codegen.scalars import RANDOM_FUNCTIONS

Source = Literal["exact", "CUDA", "rounded twice", "open"]
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """The largest difference from the correctly rounded result. `outside`: an interval of arguments that it says nothing of."""

    ulp: float
    source: Source
    outside: tuple[float, float] | None = None


_EXACT = ErrorBound(0, "exact")
_ROUNDED_TWICE = ErrorBound(1, "rounded twice")
# Of the function of this name in CUDA: float32, float64.
_CUDA = {
    "exp": (2, 1), "exp2": (2, 1), "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1),
    "rsqrt": (2, 1), "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2), "sinh": (3, 2),
    "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2), "erf": (2, 2), "erfc": (4, 5),
    "erfinv": (2, 5), "lgamma": (6, 4), "pow": (4, 2), "atan2": (3, 2),
}  # fmt: skip
_OUTSIDE = {
    ("lgamma", torch.float32): (-10.001, -2.264),
    ("lgamma", torch.float64): (-23.0001, -2.2637),
}
# Integers for some of them; whatever the dtype, what is given is the result.
_EXACT_FUNCTIONS = (
    *COMPARISONS, "add", "sub", "mul", "and", "or", "xor", "truncdiv", "mod", "neg", "abs", "maximum", "minimum", "not", "where",
    "bitcast", "floor", "ceil", "trunc", "rint", "copysign", "fmod", "div", "sqrt", *BOUNDS_MESSAGES, "checked_probability",
    "checked_deviation",
)  # fmt: skip


def _of_cuda(function: str, dtype: torch.dtype) -> ErrorBound:
    single, double = _CUDA[function]
    outside = _OUTSIDE.get((function, torch.float32 if dtype in _HALVES else dtype))
    if dtype in _HALVES:
        return ErrorBound(1, "CUDA", outside)
    return ErrorBound(single if dtype == torch.float32 else double, "CUDA", outside)


def _bounds() -> dict[str, dict[torch.dtype, ErrorBound]]:
    bounds = {name: dict.fromkeys((*_INTEGERS, *_FLOATS), _EXACT) for name in _EXACT_FUNCTIONS}
    for name in _CUDA:
        bounds[name] = {dtype: _of_cuda(name, dtype) for dtype in _FLOATS}
    bounds["fma"] = {**dict.fromkeys(_HALVES, _ROUNDED_TWICE), torch.float32: _EXACT, torch.float64: _EXACT}
    # From float64 and integers to half types by way of float32, as PyTorch.
    bounds["cast"] = {**dict.fromkeys((*_INTEGERS, torch.float32, torch.float64), _EXACT)}
    bounds["cast"] |= dict.fromkeys(_HALVES, _ROUNDED_TWICE)
    # Bits from a counter; normal numbers are functions of them whose errors add up, and nobody compares them with others.
    bounds |= {name: {torch.int64: _EXACT, **dict.fromkeys(_FLOATS, _EXACT)} for name in RANDOM_FUNCTIONS}
    bounds["philox_normal"] = dict.fromkeys(_FLOATS, ErrorBound(math.inf, "open"))
    return bounds


ERROR_BOUNDS: Mapping[str, Mapping[torch.dtype, ErrorBound]] = MappingProxyType(_bounds())
"""Function -> dtype of the result -> bound, for every function of `functions.FUNCTIONS`."""
