"""Sums that overflow in one order of their terms and not in another: elements of a result that eager does not determine.

Proof. Let P be the sum of an element's positive terms and N that of the magnitudes of its negative ones. An order that begins
with all positive terms has the partial sum P, one that begins with the negative ones -N. So if P is beyond the largest number,
one order gives infinity, and if N is too, another gives -infinity, and two accumulators added up at the end NaN. No operator
promises an order, nor that a term is not rounded before it is added. P and N follow from the operator itself, which is linear
in its terms: applied to magnitudes it gives P + N, applied to the numbers P - N, both in float64.

Only float32: half types are accumulated in float32, and of float64 nobody knows P.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Sums of their inputs, or of products of one element of each of two inputs.
LINEAR_SUMS = frozenset(
    """sum nansum mean cumsum trace mm bmm mv dot addmm baddbmm addmv addbmm addr convolution convolution_backward index_add
    scatter_add col2im embedding_dense_backward""".split()  # noqa: SIM905
)
_BEYOND = torch.finfo(torch.float32).max * (1 + 2.0**-25)  # what is larger rounds to infinity
_FACTORS = ("alpha", "beta")  # of terms, in every such operator


def with_open_overflows(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """`result` of such an operator, with an infinity or NaN where another order of its terms gives one.

    float32 results only; what is already infinite stays, unless both infinities are possible. Changes no argument.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not any(_is_single(leaf) for leaf in tree_leaves(result)) or not _can_overflow(leaves):
        return result
    if any(tensor.layout is not torch.strided or tensor.dtype.is_complex for tensor in tensors):
        return result
    numbers, magnitudes = (_wide(args, kwargs, is_magnitude=is_magnitude) for is_magnitude in (False, True))
    wide, wide_magnitudes = func(*numbers[0], **numbers[1]), func(*magnitudes[0], **magnitudes[1])
    is_mean = func._schema.name == "aten::mean"
    count = tensors[0].numel() / max(result.numel(), 1) if is_mean else 1.0  # the sum is what overflows

    def opened(out: Any, numbers: Any, magnitude: Any) -> Any:
        if not _is_single(out):
            return out
        positive, negative = (magnitude + numbers) * (count / 2), (magnitude - numbers) * (count / 2)
        above, below = positive > _BEYOND, negative > _BEYOND
        bent = torch.where(above, math.inf, torch.where(below, -math.inf, out))
        bent = torch.where(above & below, math.nan, bent)
        return bent if bent.stride() == out.stride() else torch.empty_like(out).copy_(bent)

    if isinstance(result, torch.Tensor):
        return opened(result, wide, wide_magnitudes)
    return type(result)(opened(*parts) for parts in zip(result, wide, wide_magnitudes, strict=True))


def _is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def _can_overflow(leaves: list[Any]) -> bool:
    """Whether the largest term, taken as often as there are elements, is beyond the largest number. Infinities do not count."""
    bound, count = 1.0, 1
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.layout is torch.strided:
            if not leaf.dtype.is_floating_point:
                continue
            largest = leaf.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().item()
            bound, count = bound * max(1.0, largest), max(count, leaf.numel())
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and math.isfinite(leaf):
            bound *= max(1.0, abs(float(leaf)))
    return bound * count * 2 > _BEYOND


def _wide(args: Any, kwargs: dict[str, Any], *, is_magnitude: bool) -> tuple[Any, dict[str, Any]]:
    """The arguments in float64, or their magnitudes."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point:
            leaf = leaf.detach().double()
            return leaf.abs() if is_magnitude else leaf
        return torch.float64 if leaf is torch.float32 else leaf

    named = {name: one(value) for name, value in kwargs.items()}
    if is_magnitude:
        named |= {name: abs(named[name]) for name in _FACTORS if name in named}
    return tree_map(one, args), named
