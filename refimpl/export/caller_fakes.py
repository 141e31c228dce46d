"""Example inputs that are fake tensors of the caller's: what of them an export goes by.

Counterpart: torch/_export/non_strict_utils.py make_fake_inputs, where it takes over the caller's FakeTensorMode
Differs: an export always has a mode and symbols of its own. Sizes that are symbols of the caller's are the numbers they were made
with; which sizes may vary `dynamic_shapes` alone says, in both ways of exporting.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, inside_fake_kernel, pytree
from refimpl.errors import ForeignFakeInput


def with_sizes_as_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments; fake tensors and numbers with symbols in them are replaced by such without.

    Raises ForeignFakeInput for a symbol that stands for no number, as of the result of `nonzero`.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if not any(map(_has_symbols, leaves)):
        return args, kwargs
    mode = FakeTensorMode()
    return pytree.tree_unflatten([_with_numbers(leaf, mode) if _has_symbols(leaf) else leaf for leaf in leaves], spec)


def _has_symbols(value: Any) -> bool:
    if type(value) is not FakeTensor:
        return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    is_strided = value.layout is torch.strided
    geometry = (*value.shape, *value.stride(), value.storage_offset()) if is_strided else value.shape
    return any(type(number) is not int for number in geometry)


def _with_numbers(value: Any, mode: FakeTensorMode) -> Any:
    if not isinstance(value, FakeTensor):
        return _number(value)
    sizes, strides = [_number(size) for size in value.shape], [_number(stride) for stride in value.stride()]
    with inside_fake_kernel(mode):
        offset = _number(value.storage_offset())
        extent = 1 + offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        whole = torch.empty(max(extent, 0), dtype=value.dtype, device="meta")
        meta = whole.as_strided(sizes, strides, offset)
    fake = FakeTensor(mode, meta, value.fake_device).requires_grad_(value.requires_grad)
    if value.is_leaf or not value.requires_grad:
        return fake
    with mode, torch.enable_grad():
        return fake.view_as(fake)


def _number(value: Any) -> Any:
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    hint = value.node.hint
    if hint is None:
        raise ForeignFakeInput(
            seen=f"an example input with {value}, a number that is known only when a program runs",
            do="give example inputs of known sizes, and say by dynamic_shapes which may vary",
        )
    return hint
