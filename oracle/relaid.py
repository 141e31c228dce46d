"""Eager by its other kernels: its scalar loops read what its vector loops read before, and mkldnn computes nothing.

Kernels of one operator need not agree on the sign of a zero: the vector loop of softshrink gives +0 for -0, the scalar one
-0, and which of the two an element falls to is its position. Nor on more than that: the vector loop of a float64 remainder gives
NaN where the quotient overflows, the scalar one the remainder; mkldnn's products of bfloat16 take denormal numbers for zero.
Operands with gaps in memory are read by the scalar loops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle.inputs import map_tensors

_NEEDS_ITS_STRIDES = frozenset(["aten::_unsafe_view"])  # a view, though its schema does not say so


class StridedOperands(TorchDispatchMode):
    """Within it, functional aten operators read copies of their operands that have gaps in memory.

    Views and operators that write see the tensors themselves. Active in the backward pass as well, if that runs inside.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _is_functional(func):
            return func(*args, **(kwargs or {}))
        strided_args, strided_kwargs = inputs_laid_out_otherwise(*_converted(func, args, kwargs or {}))
        return func(*strided_args, **strided_kwargs)


@contextlib.contextmanager
def other_kernels() -> Iterator[None]:
    """Within it, eager takes scalar loops and PyTorch's own products and convolutions. Flags are as before after it."""
    with torch.backends.mkldnn.flags(enabled=False, deterministic=None, allow_tf32=None), StridedOperands():
        yield


def inputs_laid_out_otherwise(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, their tensors with gaps in memory."""
    return map_tensors((args, kwargs), strided_copy)


def _converted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Real operands of an elementwise operator in the dtype that it computes in: what it converts itself has no gaps."""
    dtypes = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    is_mixed = dtypes == {torch.float32, torch.float64}
    if not is_mixed or torch.Tag.pointwise not in func.tags:
        return args, kwargs
    return map_tensors((args, kwargs), lambda tensor: tensor.double() if tensor.dim() else tensor)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second one in memory; tensors that are not plain stay as they are."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
    if not is_plain or tensor.is_quantized or not tensor.dim():
        return tensor
    with torch.no_grad():
        copied = tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)
    return copied.detach().requires_grad_(tensor.requires_grad)


def _is_functional(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and schema.name.startswith("aten::")
        and schema.name not in _NEEDS_ITS_STRIDES
        and all(value.alias_info is None for value in (*schema.arguments, *schema.returns))
    )
