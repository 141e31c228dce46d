"""Finds calls that read an argument's memory after they have written to it through another argument.

Example: `torch.mm(a, b, out=a[1:])`, or a batch norm whose weight shares memory with its running mean.

Counterpart: at::assert_no_overlap, at::assert_no_partial_overlap, which refuse some of these calls
Differs: a functional op would read the old values. So these calls are not decomposed or functionalized: the operator itself runs
on the memory. Overlap is computed from strides; symbolic sizes count with their hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import OpOverload, pytree, storage_key, written_arguments
from refimpl.trace.eager_facts import hint_of
from refimpl.trace.internal_overlap import has_internal_overlap

_aten = torch.ops.aten
_NAMESPACES = ("aten", "prims")  # kernels of custom ops are not known
# In training they write to the running statistics, which their schemas do not say.
_BATCH_NORMS = frozenset(
    {
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten.cudnn_batch_norm.default,
        _aten.miopen_batch_norm.default,
    }
)
# Elementwise, though no overload of theirs has the pointwise tag.
_ELEMENTWISE = frozenset({"aten::copy_", "aten::bernoulli_", "aten::bernoulli", "aten::floor_divide_"})
# Their argument `value` is a 0-dim tensor, which they read before they write.
_OF_A_NUMBER = frozenset({_aten.fill_.Tensor, _aten.masked_fill_.Tensor, _aten.index_fill_.int_Tensor})


def reads_what_it_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call may read memory of one argument after writing to it through another one.

    False for unbacked sizes; lists of written tensors are not checked.
    """
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES or torch.Tag.inplace_view in func.tags:
        return False
    if not written_arguments(func) and func not in _BATCH_NORMS:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return any(
        storage_key(read) == storage_key(given[name]) and _is_disturbed(func, given[name], read)
        for name in _written(func, given)
        if _is_strided(given.get(name))
        for other, value in given.items()
        if other != name and not (other == "value" and func in _OF_A_NUMBER)
        for read in pytree.tree_leaves(value)
        if _is_strided(read) and not (other == "self" and _is_in_place(func, given[name], read))
    )


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common. False for tensors that are not strided, and for unbacked sizes."""
    if not _is_strided(a) or not _is_strided(b) or storage_key(a) != storage_key(b):
        return False
    one, other = _Places.of(a), _Places.of(b)
    return one is not None and other is not None and one.meets(other)


def _is_in_place(func: OpOverload, written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether an `out=` call does the same as the op's in-place variant: `torch.addmm(x, a, b, out=x)` is `x.addmm_(a, b)`."""
    short = func._schema.name.removeprefix(f"{func.namespace}::")
    if short.endswith("_") or not hasattr(getattr(torch.ops, func.namespace), f"{short}_"):
        return False
    a, b = _Places.of(written), _Places.of(read)
    return a is not None and a == b and not has_internal_overlap(written)


def _written(func: OpOverload, given: dict[str, Any]) -> tuple[str, ...]:
    if func in _BATCH_NORMS:
        return ("running_mean", "running_var") if given["training"] else ()
    return tuple(name for _, name in written_arguments(func))


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _is_disturbed(func: OpOverload, written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether an element of `read` is read after its memory is written. Both tensors share a storage."""
    a, b = _Places.of(written), _Places.of(read)
    if a is None or b is None:
        return False
    if _is_elementwise(func) and (a.width, a.dims) == (b.width, b.dims):
        # Kernels go through memory upwards: elements of `read` at higher addresses are read before they are written.
        if a.begin == b.begin or (a.begin < b.begin and not has_internal_overlap(written)):
            return False
    return a.meets(b)


def _is_elementwise(func: OpOverload) -> bool:
    """Whether any overload of the op, or of its in-place variant, has the pointwise tag."""
    name = func._schema.name
    if name in _ELEMENTWISE:
        return True
    short = name.removeprefix(f"{func.namespace}::")
    packets = [getattr(getattr(torch.ops, func.namespace), form, None) for form in (short, short.rstrip("_"))]
    return any(
        torch.Tag.pointwise in getattr(packet, overload).tags
        for packet in packets
        if packet is not None
        for overload in packet.overloads()
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """A tensor's bytes in its storage: elements of `width` bytes, from byte `begin` on; `dims` are (size, stride in bytes)."""

    begin: int
    width: int
    dims: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Places | None:
        """The bytes of a tensor, by the hints of symbolic sizes; None if a size is unbacked."""
        width = tensor.element_size()
        offset, *numbers = (hint_of(n) for n in (tensor.storage_offset(), *tensor.shape, *tensor.stride()))
        if offset is None or None in numbers:
            return None
        dims = zip(numbers[: tensor.dim()], numbers[tensor.dim() :], strict=True)
        return cls(offset * width, width, tuple((size, step * width) for size, step in dims if size != 1))

    def meets(self, other: _Places) -> bool:
        """Whether the two have a byte in common."""
        if any(size == 0 for size, _ in (*self.dims, *other.dims)):
            return False
        ranges: dict[int, tuple[int, int]] = {1: (1 - other.width, self.width - 1)}
        for size, step in self.dims:
            low, high = ranges.get(step, (0, 0))
            ranges[step] = low, high + size - 1
        for size, step in other.dims:
            low, high = ranges.get(step, (0, 0))
            ranges[step] = low - (size - 1), high
        terms = sorted(((step, *ranges[step]) for step in ranges if step != 0), reverse=True)
        return _is_sum(other.begin - self.begin, terms)


def _is_sum(number: int, terms: list[tuple[int, int, int]]) -> bool:
    """Whether the number is a sum of `step * count`, with `low <= count <= high`, over all terms (largest step first)."""
    if not terms:
        return number == 0
    (step, low, high), *rest = terms
    least, most = sum(s * a for s, a, _ in rest), sum(s * b for s, _, b in rest)
    first, last = max(low, -((most - number) // step)), min(high, (number - least) // step)
    return any(_is_sum(number - step * count, rest) for count in range(first, last + 1))
