"""What a compiled program depends on besides the data of its arguments.

Counterpart: the guards of TorchDynamo
Differs: one value compared as a whole. What Python state a function reads besides its arguments is not known here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl._torch import is_any_autocast_enabled, is_traceable_wrapper_subclass, pytree, storage_key

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class CallKey:
    """Equal keys, equal graphs. With symbolic sizes the guards of the shape env decide too (`admits`)."""

    modes: Hashable
    structure: Hashable
    leaves: tuple[Hashable, ...]
    shared: Hashable
    guards: Any = field(default=None, compare=False)

    def admits(self, other: CallKey, leaves: Sequence[Any]) -> bool:
        """Whether what was compiled under this key serves a call with the other."""
        return self == other


def call_key(
    leaves: Sequence[Any],
    in_spec: pytree.TreeSpec,
    state_names: tuple[str, ...],
    module: torch.nn.Module | None,
    *,
    dynamic: bool,
) -> CallKey:
    """Of a call: of every tensor its geometry, dtype, device and place in autograd; which share memory; modes that are on."""
    training = None if module is None else tuple(m.training for m in module.modules())
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _autocast(), training
    return CallKey(
        modes, (in_spec, state_names), tuple([_leaf_key(leaf, dynamic=dynamic) for leaf in leaves]), _shared(leaves)
    )


def _autocast() -> Hashable:
    if not is_any_autocast_enabled():
        return None
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICE_TYPES)


def _leaf_key(leaf: Any, *, dynamic: bool) -> Hashable:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), leaf if isinstance(leaf, Hashable) else id(leaf)
    has_strides = leaf.layout is torch.strided and not leaf.is_nested and not is_traceable_wrapper_subclass(leaf)
    geometry = (leaf.stride(), leaf.storage_offset()) if has_strides else None
    return (
        type(leaf), leaf.dtype, leaf.device, leaf.layout, leaf.shape, geometry, leaf.requires_grad, leaf.is_leaf,
        leaf.is_conj(), leaf.is_neg(), leaf._base is None,
    )  # fmt: skip


def _shared(leaves: Sequence[Any]) -> Hashable:
    """Which tensors are one object, and which share a storage or an autograd base."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len({id(t) for t in tensors}) == len(tensors):
        keys = [storage_key(t) for t in tensors if t.layout is torch.strided and not is_traceable_wrapper_subclass(t)]
        if len(set(keys)) == len(keys):
            return None
    first: dict[Hashable, int] = {}
    found: list[Hashable] = []
    for index, tensor in enumerate(tensors):
        is_plain = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)
        base = None if tensor._base is None else first.setdefault(("base", id(tensor._base)), index)
        found.append(
            (
                first.setdefault(("object", id(tensor)), index),
                first.setdefault(("storage", storage_key(tensor)), index) if is_plain else None,
                base,
            )
        )
    return tuple(found)
