"""Fake tensors of the caller as example inputs of an export.

Counterpart: torch/_export/non_strict_utils.py make_fake_inputs, where it takes over the caller's FakeTensorMode
Differs: an export always has its own fake mode and symbols. A symbolic size of the caller is replaced by its hint; only
`dynamic_shapes` makes a size dynamic, in strict and non-strict export.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor, FakeTensorMode, inside_fake_kernel, pytree
from refimpl.errors import ForeignFakeInput


def with_hints_as_sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with symbols replaced by their hints, also in sizes and strides of fake tensors.

    Raises ForeignFakeInput for an unbacked symbol, such as a size of `x.nonzero()`.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if not any(map(_has_symbols, leaves)):
        return args, kwargs
    mode = FakeTensorMode()
    return pytree.tree_unflatten([_with_numbers(leaf, mode) if _has_symbols(leaf) else leaf for leaf in leaves], spec)


def _has_symbols(value: Any) -> bool:
    if type(value) is not FakeTensor:
        return isinstance(value, SYMBOLIC_TYPES)
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
    if not isinstance(value, SYMBOLIC_TYPES):
        return value
    hint = value.node.hint
    if hint is None:
        raise ForeignFakeInput(
            seen=f"an example input with the unbacked symbol {value}",
            do="pass example inputs with known sizes, and mark dynamic ones by dynamic_shapes",
        )
    return hint
