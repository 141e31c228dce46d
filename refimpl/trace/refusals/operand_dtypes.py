"""Operands whose dtypes eager's kernels refuse where fake kernels, and rules that convert, take them.

A call with such operands is left to the operator, which raises what eager raises: `torch.nn.functional.gelu` differentiated with
a gradient of another dtype, `torch.take` with an index of int32, `torch.polar` of half types.

Counterpart: the checks in kernels, aten/src/ATen/native/mixed_data_type.h among them
Differs: the CPU's kernel is asked, on stand-ins (`refimpl.trace.eager_facts`); its answer is taken on other devices too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.trace.eager_facts import refuses_dtypes
from refimpl.trace.refusals.operand_numbers import numbers_fit

_COMMON = frozenset(
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    ]
)


def operands_fit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator's kernel takes operands of these dtypes together, and the dtype holds the numbers among them."""
    return not refuses_dtypes(func, args, kwargs) and numbers_fit(func, args, kwargs)


def are_common(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors, those in lists as well, and dtypes among the arguments are of dtypes that most kernels know."""
    for operand in (*args, *kwargs.values()):
        for x in operand if isinstance(operand, (list, tuple)) else (operand,):
            dtype = x if isinstance(x, torch.dtype) else getattr(x, "dtype", None)
            if isinstance(dtype, torch.dtype) and dtype not in _COMMON:
                return False
    return True
