"""Indexing by a SymInt, `x[n]` and `x[n] = y`, without the specialization of n to an int that C++ would do.

Counterpart: torch/_export/non_strict_utils.py _NonStrictTorchFunctionHandler
Differs: every SymInt in an index becomes one `select`; torch handles the rest of the index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch


def has_unbacked_integer(index: Any) -> bool:
    """Whether an index, or an item of it, is a SymInt that depends on data."""
    items = index if type(index) is tuple else (index,)
    return any(isinstance(item, torch.SymInt) and not item.node.has_hint() for item in items)


def has_symbolic_integer(index: Any) -> bool:
    """Whether an index, or an item of it, is a SymInt."""
    return isinstance(index, torch.SymInt) or (
        type(index) is tuple and any(isinstance(item, torch.SymInt) for item in index)
    )


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]`. Raises what `select` raises: an unbacked SymInt must be known to be within bounds."""
    selected, rest = _selected(tensor, index)
    return selected[rest] if rest else selected


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`."""
    selected, rest = _selected(tensor, index)
    selected[rest or ...] = value


def _selected(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The view that `select` by each SymInt of the index returns, and the other items of the index."""
    items: tuple[Any, ...] = index if type(index) is tuple else (index,)
    dims = [_dims_of(item) for item in items]
    taken = sum(count for item, count in zip(items, dims, strict=True) if item is not ...)
    place, places = 0, list[tuple[int, torch.SymInt]]()
    for item, count in zip(items, dims, strict=True):
        if isinstance(item, torch.SymInt):
            places.append((place, item))
        place += tensor.dim() - taken if item is ... else count
    for dim, number in reversed(places):  # last dimension first, so that the numbers of the others stay right
        tensor = torch.select(tensor, dim, number)
    return tensor, tuple(item for item in items if not isinstance(item, torch.SymInt))


def _dims_of(item: Any) -> int:
    """How many dimensions an item of an index consumes."""
    if item is None or item is ... or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if is_mask else 1


INDEXING: dict[Any, Callable[..., Any]] = {operator.getitem: get_item, operator.setitem: set_item}
