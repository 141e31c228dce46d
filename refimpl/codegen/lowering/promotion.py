"""Type promotion of elementwise operators: the common dtype, and how operands are converted to it.

Counterpart: torch/_prims_common/__init__.py elementwise_dtypes

Note [Operands of half types]. Eager converts operands to their common dtype before it computes in float32. So numbers, zero-dim
tensors and integers are rounded to float16 or bfloat16 first, and `x == 0.1` holds if x is 0.1 in bfloat16. Some kernels do not
round one factor or divisor: on a CPU the second operand if it has one element, on a GPU Python numbers.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from refimpl.codegen.lowering.state import HALF, KERNEL_DTYPES, NotLowered, cast, literal
from refimpl.codegen.tensors import Computed, Stored
from refimpl.trace.dtypes import rounded_number

# Positions of operands that are not rounded, by the device's type and the function.
_KEPT_ON_CPU = {"mul": (1,), "div": (1,)}
_KEPT_ELSEWHERE = {"add": (0, 1), "sub": (0, 1), "mul": (0, 1), "div": (1,)}


def promoted(*operands: Any) -> torch.dtype:
    """The common dtype of the operands, as torch.result_type."""
    dtype: Any = None
    for operand in operands:
        category = _category_of(operand)
        dtype = category if dtype is None else _Promoted.of(dtype, category)
    return dtype.dtype if isinstance(dtype, torch.Tensor) else torch.result_type(dtype, dtype)


def _category_of(operand: Any) -> Any:
    if isinstance(operand, (Stored, Computed)):
        if operand.dtype not in KERNEL_DTYPES:  # some of them take no part in promotion
            raise NotLowered(f"an argument of {operand.dtype}")
        return torch.empty([1] * min(len(operand.shape), 1), dtype=operand.dtype, device="meta")
    if isinstance(operand, sympy.Basic):
        return 1 if operand.is_integer else 1.0
    return operand


class _Promoted:
    """Merges two operands into one of the same category: a tensor with dimensions, a zero-dim tensor, or a number."""

    @staticmethod
    def of(a: Any, b: Any) -> Any:
        dtype = torch.result_type(a, b)
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            return a + b
        dims = max(value.dim() for value in (a, b) if isinstance(value, torch.Tensor))
        return torch.empty([1] * dims, dtype=dtype, device="meta")


def float_promoted(*operands: Any) -> torch.dtype:
    """The common dtype, where integers become the default float dtype."""
    dtype = promoted(*operands)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def entering(operands: tuple[Any, ...], dtype: torch.dtype, device: torch.device, function: str = "") -> list[Any]:
    """The operands after conversion to the common dtype; see Note [Operands of half types]."""
    is_cpu = device.type == "cpu"
    kept = (_KEPT_ON_CPU if is_cpu else _KEPT_ELSEWHERE).get(function, ())
    return [
        operand if position in kept and is_single(operand, is_cpu=is_cpu) else rounded(operand, dtype, device)
        for position, operand in enumerate(operands)
    ]


def is_single(operand: Any, *, is_cpu: bool) -> bool:
    """Whether it is a number, or on a CPU a tensor of one element."""
    return is_cpu and all(size == 1 for size in operand.shape) if isinstance(operand, (Stored, Computed)) else True


def rounded(operand: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The number or tensor rounded to a half dtype; unchanged for other dtypes."""
    if dtype not in HALF:
        return operand
    match operand:
        case Stored() | Computed():
            if operand.dtype == dtype:
                return operand
            return Computed(operand.shape, dtype, operand.device, lambda at: cast(operand.at(at), dtype), operand.cost)
        case sympy.Expr() if operand.is_integer:
            return Computed((), dtype, device, lambda at: literal(operand, dtype))
        case int() | float():
            return rounded_number(operand, dtype)
        case _:
            return operand
