"""Linear interpolation as eager mode has it: one operator. torch's Python kernels, which traces with symbolic sizes take, compute
differences of neighbours instead, which overflow where no weighted sum of them does.

Counterpart: none; torch/_decomp/decompositions.py _upsample_linear_vec is what is put right
Differs: in two dimensions, for which the operator itself has a Python kernel, it is left as it is.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

aten = torch.ops.aten
_OPERATORS = MappingProxyType(
    {("linear", 3): aten.upsample_linear1d.default, ("trilinear", 5): aten.upsample_trilinear3d.default}
)


def linear_interpolation(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The result of torch.nn.functional.interpolate by the operator, or None: another mode, or arguments that do not fit."""
    operator = _OPERATORS.get((mode, input.dim())) if isinstance(input, torch.Tensor) else None
    if operator is None or antialias or (size is None) is (scale_factor is None):
        return None
    count = input.dim() - 2
    given = scale_factor if size is None else size
    given = list(given) if isinstance(given, (tuple, list)) else [given] * count
    if len(given) != count or (size is not None and recompute_scale_factor):
        return None
    if size is not None:
        return operator(input, given, bool(align_corners))
    sizes = [torch.sym_int(extent * factor) for extent, factor in zip(input.shape[2:], given, strict=True)]
    return operator(input, sizes, bool(align_corners), *([None] * count if recompute_scale_factor else given))
