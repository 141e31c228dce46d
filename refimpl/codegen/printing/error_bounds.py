"""Error bounds of functions in kernels, in ulp from the correctly rounded result, as a table.

Bounds of libdevice's functions are those that NVIDIA documents for the CUDA functions of the same names (CUDA C++ Programming
Guide, Mathematical Functions): the largest errors found in extensive tests that are not exhaustive. Half dtypes are computed in
float32 and rounded once more. That is exact for IEEE 754 operations, since float32 has enough bits for them, and off by at most
one ulp for the others. `python -m refimpl.tests.codegen.function_errors` measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from refimpl.codegen.printing.functions import FUNCTIONS, TRITON_DTYPES
from refimpl.codegen.scalars import RANDOM_FUNCTIONS, ROUNDING_FUNCTIONS

Source = Literal["exact", "CUDA", "rounded twice", "open"]
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """The largest error of a function. `outside`: an interval of arguments without a bound."""

    ulp: float
    source: Source
    outside: tuple[float, float] | None = None


_EXACT = ErrorBound(0, "exact")
_ROUNDED_TWICE = ErrorBound(1, "rounded twice")
_OUTSIDE = {
    ("lgamma", torch.float32): (-10.001, -2.264),
    ("lgamma", torch.float64): (-23.0001, -2.2637),
}


def _of_cuda(function: str, dtype: torch.dtype) -> ErrorBound:
    single, double = ROUNDING_FUNCTIONS[function]
    outside = _OUTSIDE.get((function, torch.float32 if dtype in _HALVES else dtype))
    if dtype in _HALVES:
        return ErrorBound(1, "CUDA", outside)
    return ErrorBound(single if dtype == torch.float32 else double, "CUDA", outside)


def _bounds() -> dict[str, dict[torch.dtype, ErrorBound]]:
    # All other functions are exact in every dtype; some exist for integers only.
    bounds = {name: dict.fromkeys(TRITON_DTYPES, _EXACT) for name in sorted(FUNCTIONS)}
    for name in ROUNDING_FUNCTIONS:
        bounds[name] = {dtype: _of_cuda(name, dtype) for dtype in _FLOATS}
    bounds["fma"] |= dict.fromkeys(_HALVES, _ROUNDED_TWICE)
    # Like PyTorch, casts from float64 and integers to half dtypes go through float32.
    bounds["cast"] |= dict.fromkeys(_HALVES, _ROUNDED_TWICE)
    # Random bits are exact. Normal numbers are functions of them whose errors add up; no kernel of eager draws the same ones.
    bounds |= {name: {torch.int64: _EXACT, **dict.fromkeys(_FLOATS, _EXACT)} for name in RANDOM_FUNCTIONS}
    bounds["philox_normal"] = dict.fromkeys(_FLOATS, ErrorBound(math.inf, "open"))
    return bounds


ERROR_BOUNDS: Mapping[str, Mapping[torch.dtype, ErrorBound]] = MappingProxyType(_bounds())
"""Maps each function of `functions.FUNCTIONS` to its bound by dtype of the result."""
