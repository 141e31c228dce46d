"""Interpolation as eager mode has it: one operator. torch's Python kernels, which traces with symbolic sizes take, compute
differences of neighbours instead, which overflow where no weighted sum of them does, and take images without channels.

Counterpart: none; torch/_decomp/decompositions.py _upsample_linear_vec, upsample_bicubic2d_default, _upsample_nearest are what is
put right
Differs: in two dimensions the Python kernels are of the operators themselves: passed by.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import TorchDispatchMode, enable_python_dispatcher, no_python_dispatcher

aten = torch.ops.aten
_OPERATORS = MappingProxyType(
    {
        ("nearest", 3): aten.upsample_nearest1d.default,
        ("nearest", 4): aten.upsample_nearest2d.default,
        ("nearest", 5): aten.upsample_nearest3d.default,
        ("nearest-exact", 3): aten._upsample_nearest_exact1d.default,
        ("nearest-exact", 4): aten._upsample_nearest_exact2d.default,
        ("nearest-exact", 5): aten._upsample_nearest_exact3d.default,
        ("linear", 3): aten.upsample_linear1d.default,
        ("bilinear", 4): aten.upsample_bilinear2d.default,
        ("bicubic", 4): aten.upsample_bicubic2d.default,
        ("trilinear", 5): aten.upsample_trilinear3d.default,
    }
)
# The operators as a program calls them itself.
INTERPOLATIONS = tuple(
    call
    for operator in _OPERATORS.values()
    for call in (operator, operator.overloadpacket, operator.overloadpacket.vec)
)


class PythonKernelsBelowAutogradMode(TorchDispatchMode):
    """In two dimensions the operator has a kernel in Python for autograd, which is passed by; its fake kernel is one too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as RecordingMode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with enable_python_dispatcher():
            return func(*args, **(kwargs or {}))


def interpolation_by_operator(
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
    is_nearest = mode.startswith("nearest")
    if (
        operator is None
        or antialias
        or (size is None) is (scale_factor is None)
        or (is_nearest and align_corners is not None)
    ):
        return None
    count = input.dim() - 2
    given = scale_factor if size is None else size
    given = list(given) if isinstance(given, (tuple, list)) else [given] * count
    if len(given) != count or (size is not None and recompute_scale_factor):
        return None
    factors = [] if size is not None or recompute_scale_factor else given
    sizes = given
    if size is None:
        sizes = [torch.sym_int(extent * factor) for extent, factor in zip(input.shape[2:], given, strict=True)]
    with no_python_dispatcher(), PythonKernelsBelowAutogradMode():
        return operator(input, sizes, *([] if is_nearest else [bool(align_corners)]), *factors)
