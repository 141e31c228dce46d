"""Strides of `x[indices]`, whose kernel orders dimensions as an elementwise one does: by `x`, which has no step along the
dimensions of the indices, and then by the indices. The fake kernel judges sizes of 1 by other rules.

Counterpart: torch/_meta_registrations.py meta_index_Tensor
Differs: follows the kernel where the two disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.layouts.elementwise import Layout, elementwise_strides

aten = torch.ops.aten

_INDEXING = frozenset([aten.index.Tensor, aten._unsafe_index.Tensor])


def indexed_strides(func: Any, shape: Sequence[int], args: Sequence[Any]) -> tuple[int, ...] | None:
    """Strides of the result of an operator that reads at indices; None for other operators, and for what only the kernel knows:
    indices of other dtypes than int64, symbolic sizes, results without elements, and several indices elsewhere than on a CPU."""
    if func not in _INDEXING or len(args) != 2:
        return None
    x, indices = args
    by_dim = {dim: index for dim, index in enumerate(indices) if index is not None}
    layouts = {dim: (tuple(index.shape), index.stride()) for dim, index in by_dim.items()}
    numbers = [*shape, *x.shape, *x.stride(), *(n for layout in layouts.values() for part in layout for n in part)]
    if not by_dim or any(type(number) is not int for number in numbers) or 0 in shape:
        return None
    if x.device.type != "cpu" and len(by_dim) > 1:
        return None
    if any(index.dtype is not torch.int64 for index in by_dim.values()):
        return None
    dims = sorted(by_dim)
    begin = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    common = tuple(torch.broadcast_shapes(*(own for own, _ in layouts.values())))
    steps = [step for dim, step in enumerate(x.stride()) if dim not in by_dim]
    source = (*steps[:begin], *[0] * len(common), *steps[begin:])
    after = len(steps) - begin
    operands = [_surrounded(_expanded(layouts[dim], common), begin, after) for dim in dims]
    return elementwise_strides(shape, [(tuple(shape), source), *operands])


def _expanded(layout: Layout, shape: tuple[int, ...]) -> Layout:
    own, strides = layout
    missing = len(shape) - len(own)
    sizes = (*[1] * missing, *own)
    steps = (*[1] * missing, *strides)
    return shape, tuple(step if size == target else 0 for size, target, step in zip(sizes, shape, steps, strict=True))


def _surrounded(layout: Layout, before: int, after: int) -> Layout:
    """A view with sizes of 1 around. A step along a size of 1 is one over all elements inside that lie evenly."""
    shape, strides = layout
    base, count = (strides[-1] if strides else 1), 1
    found = [base] * after
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if size != 1 and stride != count * base:
            base, count = stride, 1
        found.append(count * base)
        count *= size
    found += [count * base] * before
    return (*[1] * before, *shape, *[1] * after), tuple(reversed(found))
