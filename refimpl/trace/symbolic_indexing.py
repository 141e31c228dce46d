"""`x[n]`, `x[n] = y` and `torch.tensor([n])` for symbolic numbers n, without the specialization of n that C++ would do.

Counterpart: torch/_export/non_strict_utils.py _NonStrictTorchFunctionHandler
Differs: every SymInt in an index becomes one `select`; torch handles the rest of the index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES


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


# ---------------------------------------------------------------------------------------------------- torch.tensor(numbers)


def is_of_symbolic_numbers(data: Any, options: Mapping[str, Any]) -> bool:
    """Whether `torch.tensor(data, **options)` is given a symbolic number, alone or in nested lists of numbers."""
    numbers = _numbers(data)
    return options.keys() <= {"dtype", "device"} and any(isinstance(number, SYMBOLIC_TYPES) for number in numbers)


def tensor_of_numbers(data: Any, **options: Any) -> torch.Tensor:
    """`torch.tensor(data)` of numbers: one operator each. The dtype is that of the same numbers of Python."""
    given = {name: value for name, value in options.items() if value is not None}
    return _tensor(data, {"dtype": _dtype_of(_numbers(data)), **given})


def _tensor(data: Any, options: dict[str, Any]) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_tensor(item, options) for item in data])
    if isinstance(data, (bool, torch.SymBool)):
        return torch.full((), data, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return torch.scalar_tensor(data, **options)


def _numbers(data: Any) -> list[Any]:
    """The numbers in nested lists; none if there is anything else."""
    if isinstance(data, (bool, int, float, *SYMBOLIC_TYPES)):
        return [data]
    if not isinstance(data, (list, tuple)):
        return []
    inner = [_numbers(item) for item in data]
    return [number for numbers in inner for number in numbers] if all(inner) else []


def _dtype_of(numbers: Sequence[Any]) -> torch.dtype:
    if any(isinstance(number, (float, torch.SymFloat)) for number in numbers):
        return torch.get_default_dtype()
    return torch.bool if all(isinstance(number, (bool, torch.SymBool)) for number in numbers) else torch.int64
