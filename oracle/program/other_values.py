"""Change the values of given arguments, for later calls of the default plan.

With repeated values, a compiler that returns its first result again would agree with eager. The values cannot be drawn again,
since it is unknown how they were drawn. So each tensor is changed and keeps the properties that a program may rely on:

- shape, strides, dtype, aliasing; which elements are zero, negative, NaN or infinite;
- a range that contains 0: floats are multiplied by a number below 1;
- an order along the last dimension, and symmetric or triangular square matrices: elements of such tensors are not moved;
- integers and booleans beside floats, which are indices, lengths or pivots. If no argument is a float, integers are the data, and
  whole slices of them are moved, so that indices stay in range and distinct numbers stay distinct.

A program may rely on more (numbers above 1, orthogonal columns). Running it shows that: `oracle.case` uses a weaker change if
eager raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from oracle.dtypes import SPARSE_LAYOUTS
from oracle.program.clone import has_plain_storage, map_tensors

_FACTORS = (0.75, 0.625)  # for odd and for even calls


def change_values(arguments: Any, *, call: int, moves: bool) -> None:
    """Write other values into the tensors of a tree, which must be a copy made by `clone_tree`.

    `moves`: slices change places too. Otherwise floats are only multiplied, and integers keep their values.
    """
    tensors = list(_tensors_in(arguments))
    floats = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    users: dict[int, list[torch.Tensor]] = {}
    for tensor in floats or tensors:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and has_plain_storage(tensor):
            users.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    others = [t for t in tensors if not any(t is one for one in floats)] if floats else []
    kept = {t.untyped_storage()._cdata for t in others if has_plain_storage(t)}
    for key, sharing in users.items():
        if key in kept or len({tensor.dtype for tensor in sharing}) > 1:
            continue  # tensors of two dtypes, or of two kinds of values, share this storage
        if moves and len(sharing) == 1:
            _move(sharing[0], call)
        if floats:
            _multiply(_whole_storage(sharing[0]), call)
    for tensor in floats:
        if tensor.layout in SPARSE_LAYOUTS:
            values = tensor.detach()._values() if tensor.layout is torch.sparse_coo else tensor.detach().values()
            _multiply(values, call)


def _tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(tree, lambda tensor: found.append(tensor))
    yield from found


def _multiply(elements: torch.Tensor, call: int) -> None:
    factor = _FACTORS[(call - 1) % len(_FACTORS)]
    if elements.dtype.itemsize == 1:  # float8 has no arithmetic
        elements.copy_((elements.to(torch.float32) * factor).to(elements.dtype))
    else:
        elements.mul_(factor)


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the tensor's storage, as a tensor with its own version counter, so that autograd sees no change."""
    storage = tensor.untyped_storage()
    result = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return result.set_(storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))


def _move(tensor: torch.Tensor, call: int) -> None:
    """Roll the tensor along its first dimension of size > 1, unless an order or a structure would be lost."""
    dim = next((at for at, size in enumerate(tensor.shape) if size > 1), None)
    if dim is None or _may_overlap_itself(tensor):
        return
    elements = _whole_storage(tensor).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    rank = tensor.dim()
    if dim == rank - 1 and _is_ordered(elements):
        return
    if dim == rank - 2 and tensor.shape[-1] == tensor.shape[-2] and _has_structure(elements):
        return
    elements.copy_(torch.roll(elements, call, dim))


def _may_overlap_itself(tensor: torch.Tensor) -> bool:
    reach = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _is_ordered(elements: torch.Tensor) -> bool:
    if elements.is_complex() or elements.dtype is torch.bool:
        return False
    numbers = elements.to(torch.float64) if elements.is_floating_point() else elements.to(torch.int64)
    steps = numbers.diff()
    return bool((steps >= 0).all() or (steps <= 0).all())


def _has_structure(matrix: torch.Tensor) -> bool:
    wide = matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)
    return not wide.tril(-1).any() or not wide.triu(1).any() or torch.equal(wide, wide.mH) or torch.equal(wide, wide.mT)
