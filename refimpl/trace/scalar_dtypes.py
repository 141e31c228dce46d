"""8-bit floats without dimensions beside complex tensors: eager mode takes them, fake kernels know no complex dtype of theirs.

Counterpart: torch/_prims_common/__init__.py elementwise_dtypes, which raises a KeyError of them
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from refimpl._torch import OpOverload

_ELSEWHERE = frozenset([torch.ops.aten.rsub.Tensor, torch.ops.aten.rsub.Tensor_out])  # without the tag


def with_plain_scalars(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with float32 in place of 8-bit floats where their dtype is of no matter: a complex tensor with dimensions
    gives the result's. Of elementwise ops alone."""
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
    """By the tag, which overloads with `out=` and those for lists lack."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    name = func.overloadpacket.__name__.removeprefix("_foreach_")
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return func in _ELSEWHERE or any(torch.Tag.pointwise in overload.tags for overload in overloads)
