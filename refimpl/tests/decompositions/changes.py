"""Calls out of calls: the same op on other memory layouts, other values, no elements, and indices that are out of bounds.

A layout is changed in all tensors, or in the first or the others alone, since kernels decide by all operands where a result
lies. Values are changed in one tensor at a time and in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from refimpl.tests.decompositions.calls import Call, leaves_of, mapped

aten = torch.ops.aten
Change = Callable[[torch.Tensor], torch.Tensor]

# These check their indices, so that one that is out of bounds is an error and not memory of somebody else.
_CHECK_INDICES = frozenset(
    [
        aten.embedding.default,
        aten.index_add.default,
        aten.index_copy.default,
        aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor,
        aten.index_reduce.default,
        aten.nll_loss_forward.default,
        aten.nll_loss2d_forward.default,
        aten.put.default,
        aten.take.default,
    ]
)
# These read or write memory as if it was contiguous: expanded tensors have too little of it.
_READ_MEMORY = frozenset(
    [
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit_functional.default,
        aten._weight_norm_interface.default,
        aten._weight_norm_interface_backward.default,
        aten.native_batch_norm.default,
        aten.native_batch_norm_backward.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten.native_layer_norm.default,
        aten.native_layer_norm_backward.default,
    ]
)
_FAR = 1_000_003


def _is_dense(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def _reordered(x: torch.Tensor) -> torch.Tensor:
    """The same values with the last dimension outermost in memory; channels last where there are four dimensions."""
    if x.ndim < 2:
        return x
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


def _gapped(x: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each element."""
    return x if x.ndim < 1 else torch.stack([x, x], -1)[..., 0]


def _expanded(x: torch.Tensor) -> torch.Tensor:
    """The first row, as often as there are rows."""
    return x if x.ndim < 1 or x.shape[0] < 2 else x[:1].expand_as(x)


def _stepped(x: torch.Tensor) -> torch.Tensor:
    """The same elements; along sizes of 1 with a stride that is no product of sizes, as a slice of a larger tensor has."""
    if 1 not in x.shape or not x.is_contiguous() or x.numel() == 0:
        return x
    strides = [x.numel() + 5 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided(x.shape, strides)


_LAYOUTS: dict[str, Change] = {
    "reordered": _reordered,
    "gapped": _gapped,
    "expanded": _expanded,
    "stepped": _stepped,
}


def _filled(x: torch.Tensor, values: list[float]) -> torch.Tensor:
    """The values in turn, over what was there, with half as many of the old ones after each round."""
    out = x.clone(memory_format=torch.preserve_format)
    flat = torch.arange(x.numel()) % (len(values) + max(1, len(values) // 2))
    pool = torch.tensor(values, dtype=torch.float64).to(x.dtype)
    chosen = pool[flat.clamp(max=len(values) - 1)].view(x.shape)
    return torch.where((flat < len(values)).view(x.shape), chosen, out)


def _special(x: torch.Tensor) -> torch.Tensor:
    limits = torch.finfo(x.dtype)
    return _filled(x, [math.nan, math.inf, -math.inf, 0.0, -0.0, limits.max, limits.tiny])


def _infinite(x: torch.Tensor) -> torch.Tensor:
    return _filled(x, [-math.inf, 1.0])


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return _filled(x, [-0.0, 0.0, -0.0])


def _largest(x: torch.Tensor) -> torch.Tensor:
    limit = torch.finfo(x.dtype).max
    return _filled(x, [limit, 0.75 * limit, -limit, -0.5 * limit])


def _smallest(x: torch.Tensor) -> torch.Tensor:
    limits = torch.finfo(x.dtype)
    return _filled(x, [limits.tiny, limits.tiny / 2, -limits.tiny * limits.eps, limits.tiny * limits.eps])


_VALUES: dict[str, Change] = {
    "special values": _special,
    "infinite values": _infinite,
    "zero values": _zeros,
    "largest values": _largest,
    "smallest values": _smallest,
}


def _on_real_floats(change: Change) -> Change:
    return lambda x: change(x) if x.is_floating_point() and x.numel() and 0 not in x.stride() else x


def _changed(call: Call, change: Change, name: str, *, only: Callable[[int], bool] = lambda _: True) -> Call | None:
    """The call with the change made to the tensors at chosen positions of their sequence; None if it changes nothing."""
    position, is_other = -1, False

    def visit(x: Any) -> Any:
        nonlocal position, is_other
        if not _is_dense(x):
            return x
        position += 1
        new = change(x) if only(position) else x
        is_other |= new is not x
        return new

    args, kwargs = mapped(visit, call.args), mapped(visit, call.kwargs)
    return replace(call, args=args, kwargs=kwargs, source=f"{call.source}, {name}") if is_other else None


def changed_calls(call: Call, *, is_elementwise: bool) -> Iterator[Call]:
    """The call with its tensors in other memory layouts, with other values, or without elements."""
    if any(a.alias_info is not None for a in call.overload._schema.arguments):
        return
    count = sum(map(_is_dense, leaves_of((call.args, call.kwargs))))
    found: list[Call | None] = []
    for name, change in _LAYOUTS.items():
        if change is _expanded and call.overload in _READ_MEMORY:
            continue
        found.append(_changed(call, change, name))
        if count > 1:
            found.append(_changed(call, change, f"the first {name}", only=lambda i: i == 0))
            found.append(_changed(call, change, f"all but the first {name}", only=lambda i: i > 0))
    for name, change in _VALUES.items():
        values = _on_real_floats(change)
        found.append(_changed(call, values, name))
        for at in range(min(count, 3)) if count > 1 else ():
            found.append(_changed(call, values, f"{name} in tensor {at}", only=lambda i, at=at: i == at))
    if is_elementwise:
        found.append(_changed(call, lambda x: x[:0] if x.ndim else x, "no rows"))
        found.append(_changed(call, lambda x: x[..., :0] if x.ndim else x, "no columns"))
    if call.overload in _CHECK_INDICES:
        found.append(_changed(call, _with_far_index, "an index out of bounds"))
    yield from (c for c in found if c is not None)


def _with_far_index(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is not torch.int64 or x.numel() == 0:
        return x
    out = x.clone()
    out.view(-1)[-1] = _FAR
    return out
