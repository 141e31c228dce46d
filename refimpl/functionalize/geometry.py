"""Predicates on sizes, strides and offsets: is a tensor dense, do its elements overlap, are two tensors' strides the same.

Counterpart: torch/_functorch/_aot_autograd/input_output_analysis.py compute_overlapping_inputs,
_tensors_definitely_do_not_overlap
Differs: exact for concrete sizes: where intervals do not decide, the sets of bytes are compared. Symbolic sizes are compared by
expression, without a guard; if the expressions do not decide, the answer is the safe one (at worst an extra node).
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.trace.layouts import is_same_number, is_same_shape

_EXACT_LIMIT = 1 << 20  # with more elements only intervals are compared


def is_same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether dtype, sizes and strides are the same; see `is_same_geometry`."""
    return a is b or (a.dtype == b.dtype and is_same_geometry(a, b))


def is_same_geometry(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether sizes and strides are the same. Strides of dimensions of size 1, and of an empty tensor, do not count."""
    if a.layout != b.layout or not is_same_shape(a.shape, b.shape):
        return False
    if a.layout is not torch.strided or a.is_nested or b.is_nested:
        return True
    if any(type(n) is int and n == 0 for n in a.shape):
        return True
    return all(
        (type(n) is int and n == 1) or is_same_number(s, t)
        for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def has_symbols(value: torch.Tensor) -> bool:
    """Whether a size, a stride or the storage offset is symbolic."""
    return any(type(n) is not int for n in (*value.shape, *value.stride(), value.storage_offset()))


def order_in_memory(value: torch.Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    strides = value.stride()
    dims = list(range(value.dim()))
    if not has_symbols(value):
        return sorted(dims, key=lambda d: (-strides[d], -value.shape[d]))
    for i in range(1, len(dims)):  # sorted() would compare keys that are symbolic tuples
        j = i
        while j > 0 and bool(strides[dims[j - 1]] < strides[dims[j]]):
            dims[j - 1], dims[j] = dims[j], dims[j - 1]
            j -= 1
    return dims


def is_dense(value: torch.Tensor) -> bool:
    """Whether the tensor is non-overlapping and dense."""
    if value.layout is not torch.strided or value.numel() == 0:
        return value.layout is torch.strided
    expected: Any = 1
    for dim in reversed(order_in_memory(value)):
        size = value.shape[dim]
        if type(size) is int and size == 1:
            continue
        if not bool(value.stride()[dim] == expected):
            return False
        expected = expected * size
    return True


def may_overlap_itself(value: torch.Tensor) -> bool:
    """Whether two elements may share memory. False only if the strides rule it out."""
    if has_symbols(value):
        return not is_row_major(value)
    reach = 0  # the largest offset within the dimensions of smaller strides
    for size, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda pair: pair[1]):
        if size == 0:
            return False
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def is_row_major(value: torch.Tensor) -> bool:
    """Whether the tensor is contiguous, as far as the expressions of its sizes show it."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not is_same_number(stride, expected):
            return False
        expected = size * expected
    return True


def extent(size: Any, stride: Any, offset: Any) -> tuple[Any, Any]:
    """The storage offsets of the first element and past the last one; equal for an empty tensor."""
    reach: Any = 0
    for n, s in zip(size, stride, strict=True):
        if type(n) is int and n == 0:
            return offset, offset
        reach = reach + (n - 1) * s
    return offset, offset + reach + 1


def extent_of(value: torch.Tensor) -> tuple[Any, Any]:
    """`extent` of a tensor."""
    return extent(value.shape, value.stride(), value.storage_offset())


def begins_inside(value: Any) -> bool:
    """Whether the storage offset is not known to be 0."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return False
    return not is_same_number(value.storage_offset(), 0)


def do_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common. True if a size is symbolic."""
    if has_symbols(a) or has_symbols(b):
        return True
    (a_first, a_last), (b_first, b_last) = _byte_extent(a), _byte_extent(b)
    if a_first >= b_last or b_first >= a_last:
        return False
    if a.numel() + b.numel() > _EXACT_LIMIT:
        return True
    return not _bytes(a).isdisjoint(_bytes(b))


def _byte_extent(value: torch.Tensor) -> tuple[int, int]:
    first, last = extent_of(value)
    return first * value.element_size(), last * value.element_size()


def _bytes(value: torch.Tensor) -> set[int]:
    places: list[Any] = [value.storage_offset()]
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    width = value.element_size()
    return {place * width + i for place in places for i in range(width)}


def can_view(value: torch.Tensor, size: Any) -> bool:
    """Whether `value.view(size)` works without a copy. `size` may have a -1."""
    if value.numel() == 0 or (is_dense(value) and order_in_memory(value) == list(range(value.dim()))):
        return True
    sizes = list(size)
    known: Any = 1
    for n in sizes:
        known = known if type(n) is int and n == -1 else known * n
    sizes = [value.numel() // known if type(n) is int and n == -1 else n for n in sizes]
    sizes = [n for n in sizes if not bool(n == 1)]
    dims = [(n, s) for n, s in zip(value.shape, value.stride(), strict=True) if not bool(n == 1)]
    while dims:
        elements, step = dims.pop()  # adjacent dimensions that can be merged into one
        reach: Any = elements * step
        while dims and bool(dims[-1][1] == reach):
            size_outside, _ = dims.pop()
            elements = elements * size_outside
            reach = reach * size_outside
        viewed: Any = 1
        while sizes and bool(viewed < elements):
            viewed = viewed * sizes.pop()
        if not bool(viewed == elements):
            return False
    return not sizes
