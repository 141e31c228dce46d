"""Eager by its other kernels: its scalar loops read what its vector loops read before, and mkldnn computes nothing.

Kernels of one operator need not agree on the sign of a zero: the vector loop of softshrink gives +0 for -0, the scalar one
-0, and which of the two an element falls to is its position. Nor on more than that: the vector loop of a float64 remainder gives
NaN where the quotient overflows, the scalar one the remainder; mkldnn's products of bfloat16 take denormal numbers for zero.
Operands with gaps in memory are read by the scalar loops, and so are those that are broadcast where no element has a neighbour
in memory, which copies without gaps are not: clamp gives another zero for these where bounds are zeros.

Of gradients only the loops of elementwise operators count. Kernels of reductions differ in what they read, and eager has a known
bug there: its backward of a batch norm takes the gaps of a strided weight for numbers in one of them, and not in the others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle.inputs import map_tensors

_NEEDS_ITS_STRIDES = frozenset(["aten::_unsafe_view"])  # a view, though its schema does not say so
_WRITES_UNSAID = {
    "aten::native_batch_norm": (3, 4)
}  # positions of what is written to, though the schema does not say so
# Those that are not tagged as such.
_ELEMENTWISE = {"aten::hardswish", "aten::_prelu_kernel"} | {
    f"aten::{name}_backward"
    for name in (
        "_prelu_kernel",
        "binary_cross_entropy",
        "elu",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "huber_loss",
        "leaky_relu",
        "log_sigmoid",
        "mish",
        "mse_loss",
        "smooth_l1_loss",
        "softplus",
        "softshrink",
    )
}


class StridedOperands(TorchDispatchMode):
    """Within it, functional aten operators, all or the elementwise ones, read copies of their operands that have gaps in memory.

    Views, operators that write and random ones see the tensors themselves. Results lie in memory as they do without the mode, or
    what reads memory by its layout (as_strided, is_contiguous) would make another program of it. Active in the backward pass as
    well, if that runs inside.
    """

    def __init__(self, *, elementwise: bool = False) -> None:
        super().__init__()
        self.elementwise = elementwise

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _is_functional(func) or (self.elementwise and not _is_elementwise(func)):
            return func(*args, **(kwargs or {}))
        strided_args, strided_kwargs = map_tensors(_converted(func, args, kwargs or {}), strided_copy)
        plain = func(*args, **(kwargs or {}))
        other = func(*strided_args, **strided_kwargs)
        for position in _WRITES_UNSAID.get(func._schema.name, ()):
            if isinstance(args[position], torch.Tensor):
                args[position].copy_(strided_args[position])
        for mine, its in zip(tree_leaves(plain), tree_leaves(other), strict=True):
            if _is_plain(mine) and _is_plain(its) and mine.shape == its.shape:
                mine.copy_(its)
        return plain


class DenseOperands(TorchDispatchMode):
    """Within it, elementwise aten operators read dense copies of their operands, of the shape of the result.

    As with StridedOperands results lie in memory as they do without the mode, and the backward pass is part of it.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = func(*args, **(kwargs or {}))
        if _is_functional(func) and _is_elementwise(func) and _is_plain(plain):
            dense_copy = functools.partial(_dense_copy, shape=plain.shape)
            dense_args, dense_kwargs = map_tensors((args, kwargs or {}), dense_copy)
            plain.copy_(func(*dense_args, **dense_kwargs))
        return plain


@contextlib.contextmanager
def other_kernels() -> Iterator[None]:
    """Within it, eager takes scalar loops and PyTorch's own products and convolutions. Flags are as before after it."""
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=False), StridedOperands():
        yield


def scalar_loops() -> StridedOperands:
    """Within it, eager's elementwise operators take scalar loops."""
    return StridedOperands(elementwise=True)


# By name, in the order in which they are asked.
OTHERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "other kernels": other_kernels,
    "scalar loops": scalar_loops,
    "vector loops": DenseOperands,
}


def _is_elementwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func._schema.name in _ELEMENTWISE


def _converted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Real operands of an elementwise operator in the dtype that it computes in: what it converts itself has no gaps."""
    dtypes = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    is_mixed = dtypes == {torch.float32, torch.float64}
    if not is_mixed or torch.Tag.pointwise not in func.tags:
        return args, kwargs
    return map_tensors((args, kwargs), lambda tensor: tensor.double() if tensor.dim() else tensor)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second one in memory; tensors that are not plain stay as they are."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    with torch.no_grad():
        copied = tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)
    return copied.detach().requires_grad_(tensor.requires_grad)


def _dense_copy(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The same values side by side in memory, broadcast where the shape asks for it. Numbers of no dimension stay."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in sizes):
        tensor = tensor.expand(shape)
    return tensor.clone(memory_format=torch.contiguous_format)


def _is_plain(value: Any) -> bool:
    is_strided = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested
    return is_strided and not value.is_quantized


def _is_functional(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and schema.name.startswith("aten::")
        and schema.name not in _NEEDS_ITS_STRIDES
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(value.alias_info is None for value in (*schema.arguments, *schema.returns))
    )
