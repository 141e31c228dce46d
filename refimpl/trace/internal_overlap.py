"""Finds calls that update a tensor whose elements overlap in memory, such as `x.as_strided((3, 3), (1, 1)).mul_(2)`.

Counterpart: at::assert_no_internal_overlap, which refuses some of these calls
Differs: the calls that eager accepts go element by element and read what they wrote before. A functional op would read the old
value for every element. So these calls are not decomposed or functionalized: the operator itself runs on the memory.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from refimpl._torch import OpOverload, pytree, storage_key, written_arguments
from refimpl.trace.eager_facts import hint_of

_aten = torch.ops.aten
_EXACT_LIMIT = 1 << 16  # a tensor of more elements is judged by its strides alone
# These do not read the old values: the element written last remains, as in eager.
_OVERWRITING = frozenset(
    {
        _aten.copy_.default,
        _aten.fill_.Scalar,
        _aten.fill_.Tensor,
        _aten.zero_.default,
        _aten._foreach_copy_.default,
        _aten._foreach_zero_.default,
        _aten._resize_output_.default,
        _aten.record_stream.default,
        _aten.retain_grad.default,
    }
)


def updates_overlapping_elements(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call computes new values of a tensor with internal overlap from its old values.

    For symbolic sizes, no overlap is recorded as a guard; unbacked sizes are taken to have none.
    """
    for position, name, is_out in _computed(func):
        value = args[position] if position < len(args) else kwargs.get(name)
        for tensor in _tensors(value):
            if has_internal_overlap(tensor) and (not is_out or _is_read(tensor, (args, kwargs))):
                return True
    return False


def has_internal_overlap(value: torch.Tensor) -> bool:
    """Whether two elements share memory. Of large tensors and symbolic sizes, it may be True wrongly: it only sees strides."""
    if value.layout is not torch.strided or value.is_nested:
        return False
    dims = [(size, stride) for size, stride in zip(value.shape, value.stride(), strict=True) if not _is(size, 1)]
    if any(_is(size, 0) for size, _ in dims):
        return False
    if any(type(stride) is int and stride == 0 for _, stride in dims):
        return True
    if any(hint_of(number) is None for dim in dims for number in dim):
        return False
    reach: Any = 0  # offset of the last element that the inner dimensions reach
    for size, stride in sorted(dims, key=lambda dim: hint_of(dim[1])):
        if not (hint_of(stride) > hint_of(reach) and bool(stride > reach)):
            return not _is_apart(value)
        reach = reach + (size - 1) * stride
    return False


def _is_apart(value: torch.Tensor) -> bool:
    """Whether all elements have different offsets; False for symbolic sizes and for too many elements to compare."""
    numbers = (*value.shape, *value.stride())
    if any(type(number) is not int for number in numbers) or value.numel() > _EXACT_LIMIT:
        return False
    places = [0]
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    return len(set(places)) == len(places)


@functools.cache
def _computed(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Position and name of each argument that the op updates, and whether it is an `out=` argument."""
    if not isinstance(func, OpOverload) or func in _OVERWRITING or torch.Tag.inplace_view in func.tags:
        return ()
    arguments = func._schema.arguments
    return tuple((position, name, arguments[position].is_out) for position, name in written_arguments(func))


def _is_read(tensor: torch.Tensor, call: Any) -> bool:
    """Whether another argument of the call shares the tensor's storage."""
    key = storage_key(tensor)
    return sum(storage_key(other) == key for other in _tensors(call) if other.layout is torch.strided) > 1


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is(size: Any, number: int) -> bool:
    """Whether a size equals the number; a guard if a symbolic size does in this call."""
    return bool(hint_of(size) == number and size == number)
