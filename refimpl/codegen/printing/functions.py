"""Prints functions of scalars as Triton expressions, by the dtype that they compute in.

Functions are correctly rounded, or libdevice's, whose error is bounded for all arguments (CUDA Math API, at most 2 ulp in float32
for exp, log, sin, cos, tan up to 4, tanh 2, erf 2, pow 4, lgamma 6). Approximations such as `tl.exp` are faster on a GPU, but
their error grows with the argument. Division and square root round correctly. Maximum and minimum propagate NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from refimpl.codegen.emulator import POINTER_TYPES
from refimpl.codegen.scalars import RANDOM_FUNCTIONS, ROUNDING_FUNCTIONS

# Names of dtypes are PyTorch's, except for bool.
TRITON_DTYPES = {dtype: f"tl.{str(dtype).removeprefix('torch.')}" for dtype in POINTER_TYPES} | {torch.bool: "tl.int1"}

# Checks of indices loaded from memory, with the messages of their assertions.
BOUNDS_MESSAGES = {
    "checked_index": "index out of bounds",  # an IndexError
    "checked_place": "index out of bounds for dimension",  # a RuntimeError, as gather and scatter raise
}

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "truncdiv": "//", "mod": "%"}
_LIBDEVICE = frozenset([*ROUNDING_FUNCTIONS, "trunc", "rint", "copysign", "fmod"])
FUNCTIONS = frozenset([*COMPARISONS, *_INFIX, *_LIBDEVICE, "div", "neg", "abs", "maximum", "minimum", "not", "where", "cast",
                       "floor", "ceil", "sqrt", "fma", "bitcast", *BOUNDS_MESSAGES, "checked_probability", "checked_deviation",
                       *RANDOM_FUNCTIONS])  # fmt: skip


def expression(function: str, arguments: Sequence[str], dtypes: Sequence[torch.dtype], dtype: torch.dtype) -> str:
    """The function applied to variables of these names, as a Triton expression. `dtypes` are those of the arguments, `dtype` that
    of the result. Raises KeyError for a function that is not in FUNCTIONS."""
    first = dtypes[0]
    if function in COMPARISONS:
        texts = [
            f"{name}.to(tl.int8)" if of == torch.bool else name for name, of in zip(arguments, dtypes, strict=True)
        ]
        return f"{texts[0]} {COMPARISONS[function]} {texts[1]}"
    if function in _INFIX:
        return f"{arguments[0]} {_INFIX[function]} {arguments[1]}"
    if function in _LIBDEVICE:
        return f"libdevice.{function}({', '.join(arguments)})"
    match function:
        case "div":
            return f"tl.div_rn({arguments[0]}, {arguments[1]})" if first == torch.float32 else " / ".join(arguments)
        case "sqrt":
            return f"tl.sqrt_rn({arguments[0]})" if first == torch.float32 else f"libdevice.sqrt({arguments[0]})"
        case "neg":  # Triton computes -x as 0 - x, which gives the other zero
            return f"{arguments[0]} * -1.0" if first.is_floating_point else f"{arguments[0]} * 0 - {arguments[0]}"
        case "abs" | "floor" | "ceil":
            return f"tl.{function}({arguments[0]})"
        case "maximum" | "minimum":
            nan = ", propagate_nan=tl.PropagateNan.ALL" if first.is_floating_point else ""
            text = f"tl.{function}({arguments[0]}, {arguments[1]}{nan})"
            return f"{text}.to(tl.bfloat16)" if first == torch.bfloat16 else text  # Triton returns float32
        case "not":
            return f"{arguments[0]} == 0" if first == torch.bool else f"~{arguments[0]}"
        case "fma":
            return f"tl.fma({', '.join(arguments)})"
        case "where":
            return f"tl.where({', '.join(arguments)})"
        case "cast":
            return _cast(arguments[0], first, dtype)
        case "bitcast":
            return f"{arguments[0]}.to({TRITON_DTYPES[dtype]}, bitcast=True)"
        case _:
            raise KeyError(function)


def _cast(name: str, source: torch.dtype, target: torch.dtype) -> str:
    if target == torch.bool:
        return f"{name} != 0"
    to = TRITON_DTYPES[target]
    is_half = target in (torch.float16, torch.bfloat16)
    if is_half and source not in (torch.float32, torch.float16, torch.bfloat16, torch.bool):
        return f"{name}.to(tl.float32).to({to})"  # like PyTorch, through float32
    if is_half and source in (torch.float16, torch.bfloat16):
        return f"{name}.to(tl.float32).to({to})"
    if source.is_floating_point and target == torch.uint8:
        return f"{name}.to(tl.int64).to({to})"  # like c10::convert
    if source.is_floating_point and target in (torch.int8, torch.int16):
        return f"{name}.to(tl.int32).to({to})"
    return f"{name}.to({to})"


def constant(value: float | bool, dtype: torch.dtype, shape: str) -> str:
    """A constant of exactly this dtype."""
    if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:  # tl.full makes -0.0 a 0.0
        return f"tl.full({shape}, 0.0, {TRITON_DTYPES[dtype]}) * -1.0"
    if isinstance(value, float) and not math.isfinite(value):
        text = f'float("{value}")'
    else:
        text = repr(value)
    return f"tl.full({shape}, {text}, {TRITON_DTYPES[dtype]})"
