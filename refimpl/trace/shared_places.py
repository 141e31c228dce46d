"""Calls whose result on memory depends on which element is computed first: those that update tensors whose elements share places.

Counterpart: at::assert_no_internal_overlap, which refuses some of them; what it lets through has no functional form
Differs: eager mode goes element by element, and reads what it has written before. A functional operator reads what was there
before all of them, and gives a place several values. Such calls are left to the operator, on the memory itself.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from refimpl._torch import OpOverload, pytree, storage_key, written_arguments

_aten = torch.ops.aten
_EXACT_LIMIT = 1 << 16  # elements: above, strides alone say whether two of them may share a place
# What these write does not depend on what was there: the last element to be written counts, in eager mode as well.
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


def updates_shared_places(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call computes new values of a tensor, elements of which share places, from what the tensor has before.

    Sizes that are symbolic get a guard where they say that no two do; of sizes without a hint nothing is known, and it is False.
    """
    for position, name, is_out in _computed(func):
        value = args[position] if position < len(args) else kwargs.get(name)
        for tensor in _tensors(value):
            if shares_places(tensor) and (not is_out or _is_read(tensor, (args, kwargs))):
                return True
    return False


def shares_places(value: torch.Tensor) -> bool:
    """Whether two elements are in one place; True, too, for many elements, and for symbolic sizes, whose strides suggest it."""
    if value.layout is not torch.strided or value.is_nested:
        return False
    dims = [(size, stride) for size, stride in zip(value.shape, value.stride(), strict=True) if not _is(size, 1)]
    if any(_is(size, 0) for size, _ in dims):
        return False
    if any(type(stride) is int and stride == 0 for _, stride in dims):
        return True
    if any(_hint(number) is None for dim in dims for number in dim):
        return False
    reach: Any = 0  # of the dimensions inside of the present one
    for size, stride in sorted(dims, key=lambda dim: _hint(dim[1])):
        if not (_hint(stride) > _hint(reach) and bool(stride > reach)):
            return not _is_apart(value)
        reach = reach + (size - 1) * stride
    return False


def _is_apart(value: torch.Tensor) -> bool:
    """Whether each of few elements is known to have a place of its own."""
    numbers = (*value.shape, *value.stride())
    if any(type(number) is not int for number in numbers) or value.numel() > _EXACT_LIMIT:
        return False
    places = [0]
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    return len(set(places)) == len(places)


@functools.cache
def _computed(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Position and name of the arguments that get values, and whether they are there for nothing else."""
    if not isinstance(func, OpOverload) or func in _OVERWRITING or torch.Tag.inplace_view in func.tags:
        return ()
    arguments = func._schema.arguments
    return tuple((position, name, arguments[position].is_out) for position, name in written_arguments(func))


def _is_read(tensor: torch.Tensor, call: Any) -> bool:
    """Whether what is written to is in the memory of another argument, or is one."""
    key = storage_key(tensor)
    return sum(storage_key(other) == key for other in _tensors(call) if other.layout is torch.strided) > 1


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is(size: Any, number: int) -> bool:
    """Whether it is the number, with a guard where a symbolic size is it in this call."""
    return bool(_hint(size) == number and size == number)


def _hint(number: Any) -> Any:
    """The number as it is in this call; None if nobody knows it."""
    return number.node.hint if isinstance(number, torch.SymInt) else number
