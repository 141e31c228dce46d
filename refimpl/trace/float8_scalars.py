"""Replaces 0-dim float8 operands next to complex tensors (`complex64_tensor + float8_scalar`) before fake kernels see them.

Eager computes such calls; fake kernels raise because float8 dtypes have no corresponding complex dtype.

Counterpart: torch/_prims_common/__init__.py elementwise_dtypes, which raises a KeyError for them
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from refimpl._torch import OpOverload

_UNTAGGED = frozenset([torch.ops.aten.rsub.Tensor, torch.ops.aten.rsub.Tensor_out])  # elementwise, without the tag


def without_float8_scalars(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an elementwise op, with float32 in place of 0-dim float8 next to a complex tensor with dimensions.

    The complex tensor alone decides the dtype of the result.
    """
    if not any(map(_is_small_scalar, args)) or not any(map(_is_complex, args)) or not _is_elementwise(func):
        return args
    empty_like = torch.ops.aten.empty_like.default
    return tuple(empty_like(arg, dtype=torch.float32) if _is_small_scalar(arg) else arg for arg in args)


def _is_small_scalar(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.ndim == 0 and arg.is_floating_point() and arg.itemsize == 1


def _is_complex(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return len(arg) > 0 and all(map(_is_complex, arg))
    return isinstance(arg, torch.Tensor) and arg.ndim > 0 and arg.is_complex()


@functools.cache
def _is_elementwise(func: Any) -> bool:
    """By the tag of any of its overloads, because overloads with `out=` and `_foreach_` ops lack it."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    name = func.overloadpacket.__name__.removeprefix("_foreach_")
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return func in _UNTAGGED or any(torch.Tag.pointwise in overload.tags for overload in overloads)
