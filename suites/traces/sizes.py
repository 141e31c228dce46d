"""Makes inputs with other sizes than those that a graph was traced with, and the same structure.

Sizes are changed by *class*: equal dimensions stay equal, since a shape environment gives equal sizes one symbol. Sizes of 0 and
1 stay: symbolic tracing treats them as constants. Values are repeated, so that indices stay in range and positive inputs
positive; eager decides whether an operator accepts the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from oracle.program.clone import has_plain_storage
from oracle.subjects.signature import value_key

LARGEST_ELEMENTS = 2**20  # of one enlarged tensor
SINGLE_CLASSES = 3  # number of classes of sizes that are changed one at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecondInput:
    """Arguments of another size. The tensors may be shared with others: clone before use."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str  # "sample 3", "5->10"


def same_structure(one: Any, other: Any) -> bool:
    """Whether two argument trees differ only in sizes and values of plain tensors, and in at least one size."""
    leaves, spec = pytree.tree_flatten(one)
    its_leaves, its_spec = pytree.tree_flatten(other)
    if spec != its_spec:
        return False
    shapes_differ = False
    for leaf, its in zip(leaves, its_leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            if isinstance(its, torch.Tensor) or value_key(leaf) != value_key(its):
                return False
            continue
        if not isinstance(its, torch.Tensor) or _kind(leaf) != _kind(its):
            return False
        if not has_plain_storage(leaf) and leaf.shape != its.shape:
            return False
        shapes_differ = shapes_differ or leaf.shape != its.shape
    return shapes_differ


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.dim(),
        tensor.requires_grad,
        tensor.is_conj(),
    )


def enlargements(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, is_resizable: Callable[[int], bool]
) -> Iterator[SecondInput]:
    """Candidates, the batch first: the class of the first dimension doubled, and one more; then all classes; then single ones.

    `is_resizable(number of a leaf)`: whether its sizes may change (not those of a model's parameters).
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = {
        at: leaf
        for at, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and is_resizable(at) and has_plain_storage(leaf) and leaf.dim()
    }
    classes = sorted({size for tensor in tensors.values() for size in tensor.shape if size > 1}, reverse=True)
    if not classes:
        return
    for mapping in _mappings(_batch(list(tensors.values())), classes):
        resized = [
            enlarged(leaf, _mapped(leaf.shape, mapping)) if at in tensors else leaf for at, leaf in enumerate(leaves)
        ]
        if any(resized[at].numel() > LARGEST_ELEMENTS for at in tensors):
            continue
        new_args, new_kwargs = pytree.tree_unflatten(resized, spec)
        label = ", ".join(f"{old}->{new}" for old, new in mapping.items())
        yield SecondInput(args=new_args, kwargs=new_kwargs, label=label)


def _mapped(shape: Sequence[int], mapping: Mapping[int, int]) -> tuple[int, ...]:
    return tuple([mapping.get(size, size) for size in shape])


def _batch(tensors: Sequence[torch.Tensor]) -> int | None:
    """The size of the first dimension that can be one of a batch."""
    return next((tensor.shape[0] for tensor in tensors if tensor.shape[0] > 1), None)


def _mappings(batch: int | None, classes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Old size -> new size. Doubled sizes stay even; size plus one shows assumptions of evenness."""
    proposed: list[dict[int, int]] = []
    if batch is not None:
        proposed += [{batch: 2 * batch}, {batch: batch + 1}]
    proposed += [{size: 2 * size for size in classes}, {size: size + 1 for size in classes}]
    proposed += [{size: 2 * size} for size in classes[:SINGLE_CLASSES]]
    seen: list[dict[int, int]] = []
    for mapping in proposed:
        if mapping not in seen:
            seen.append(mapping)
            yield mapping


def enlarged(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The values repeated along each dimension up to `shape`, laid out in the same order of dimensions.

    An expanded dimension (stride 0) stays expanded, since its stride is the constant 0 in the graph.
    """
    if tuple(tensor.shape) == shape:
        return tensor
    values = tensor.detach()
    expanded = [dim for dim, stride in enumerate(tensor.stride()) if stride == 0 and tensor.shape[dim] > 1]
    for dim in expanded:
        values = values.narrow(dim, 0, 1)
    for dim, size in enumerate(shape):
        if dim not in expanded and size != values.shape[dim]:
            values = values.index_select(dim, torch.arange(size, device=values.device) % values.shape[dim])
    order = sorted(range(values.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    values = values.permute(order).contiguous().permute(_inverse(order))
    return values.expand(shape).requires_grad_(tensor.requires_grad)


def _inverse(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[dim] = position
    return inverse
