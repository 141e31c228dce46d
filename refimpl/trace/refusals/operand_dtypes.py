"""Checks whether eager's kernel accepts the operand dtypes of a call; fake kernels and type-promoting decompositions accept more.

Examples: `torch.take` with an int32 index, `torch.polar` of half tensors, the backward of gelu with a tangent of another dtype.
Such a call is not decomposed: the operator itself runs, and raises eager's error.

Counterpart: the checks in kernels, aten/src/ATen/native/mixed_data_type.h among them
Differs: the CPU kernel is run on stand-ins (`refimpl.trace.eager_facts`); the result counts for other devices as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.trace.dtypes import is_common
from refimpl.trace.eager_facts import refuses_dtypes
from refimpl.trace.refusals.operand_numbers import numbers_fit


def operands_fit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator's kernel accepts operands of these dtypes together, and the numbers among the arguments fit."""
    return not refuses_dtypes(func, args, kwargs) and numbers_fit(func, args, kwargs)


def are_common(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all tensors, in lists as well, and dtype arguments are of dtypes that most kernels implement."""
    for operand in (*args, *kwargs.values()):
        for x in operand if isinstance(operand, (list, tuple)) else (operand,):
            dtype = x if isinstance(x, torch.dtype) else getattr(x, "dtype", None)
            if isinstance(dtype, torch.dtype) and not is_common(dtype):
                return False
    return True
