"""Random numbers in kernels: functions of (seed, index of the element, number of the operator), by Philox 4x32 with ten rounds.

Counterpart: triton/language/random.py
Differs: uniform numbers are multiples of the dtype's epsilon below 1, so that none rounds to 1; float64 has 53 random bits.

| function | dtype | result |
|---|---|---|
| `philox_uniform` | float16, bfloat16, float32, float64 | k / 2**n, k from 0 to 2**n - 1, n = 11, 8, 24, 53 |
| `philox_normal` | float32, float64 | Box-Muller transform of two uniform numbers of 32 or 53 bits: up to 6.7 or 8.6 |
| `philox_integer` | int64 | 63 bits |
"""

from __future__ import annotations

import math

import torch

from refimpl.codegen.emulator import POINTER_TYPES


def _helper(name: str, parameters: str, *lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"@triton.jit\ndef {name}({parameters}):\n{body}\n"


_PLACE = "seed, place, number"
_WORDS = "a, b, c, d = _words(seed, place, number)"
_53_BITS = "((a >> 5).to(tl.float64) * 67108864.0 + (b >> 6).to(tl.float64))"

RANDOM_HELPERS = {
    "_words": _helper(
        "_words",
        _PLACE,
        "low = (place & 0xFFFFFFFF).to(tl.uint32)",
        "high = (place >> 32).to(tl.uint32)",
        "return tl.philox(seed, low, high, number.to(tl.uint32), 0)",
    ),
    "_uniform_fp16": _helper(
        "_uniform_fp16", _PLACE, _WORDS, f"return ((a >> 21).to(tl.float32) * {2.0**-11}).to(tl.float16)"
    ),
    "_uniform_bf16": _helper(
        "_uniform_bf16", _PLACE, _WORDS, f"return ((a >> 24).to(tl.float32) * {2.0**-8}).to(tl.bfloat16)"
    ),
    "_uniform_fp32": _helper("_uniform_fp32", _PLACE, _WORDS, f"return (a >> 8).to(tl.float32) * {2.0**-24}"),
    "_uniform_fp64": _helper("_uniform_fp64", _PLACE, _WORDS, f"return {_53_BITS} * {2.0**-53}"),
    "_normal_fp32": _helper(
        "_normal_fp32",
        _PLACE,
        _WORDS,
        f"radius = tl.sqrt_rn(-2.0 * libdevice.log((a.to(tl.float32) + 0.5) * {2.0**-32}))",
        f"return radius * libdevice.cos(b.to(tl.float32) * {2 * math.pi * 2.0**-32})",
    ),
    "_normal_fp64": _helper(
        "_normal_fp64",
        _PLACE,
        _WORDS,
        f"radius = libdevice.sqrt(-2.0 * libdevice.log(({_53_BITS} + 0.5) * {2.0**-53}))",
        "a, b = c, d",
        f"return radius * libdevice.cos({_53_BITS} * tl.full([1], {2 * math.pi * 2.0**-53}, tl.float64))",
    ),
    "_integer": _helper("_integer", _PLACE, _WORDS, "return ((a >> 1).to(tl.int64) << 32) | b.to(tl.int64)"),
}
"""Helper functions of kernels, by name."""


def random_function(function: str, dtype: torch.dtype) -> str:
    """The name of the helper that draws one of RANDOM_FUNCTIONS in a dtype; all of them call `_words`."""
    name = function.removeprefix("philox")
    return name if function == "philox_integer" else f"{name}_{POINTER_TYPES[dtype].removeprefix('*')}"
