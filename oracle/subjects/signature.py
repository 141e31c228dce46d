"""The signature of a call: calls with equal signatures may share a trace. Its parts are listed in oracle.subjects.traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_BY_VALUE = (
    bool,
    int,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


class _ByIdentity:
    """Compares by identity, and keeps the object alive so that its id is not reused."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def signature_of(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Everything that a trace of this call depends on and that the API does not guard."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    numbering = _Numbering()
    described = tuple(numbering.tensor(leaf) if isinstance(leaf, torch.Tensor) else value_key(leaf) for leaf in leaves)
    return repr(spec), described, _modes(), _module(target)


class _Numbering:
    """Numbers objects and storages in order of appearance, so that aliasing is part of the signature."""

    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._storages: dict[int, int] = {}

    def tensor(self, tensor: torch.Tensor) -> Hashable:
        facts: tuple[Hashable, ...] = (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.requires_grad,
            tensor.is_leaf,
            tensor.is_conj(),
            tensor.is_neg(),
            self._objects.setdefault(id(tensor), len(self._objects)),
        )
        if tensor.is_nested:
            return facts
        facts += (tuple(tensor.shape),)
        if tensor.layout is not torch.strided:
            return facts
        facts += (tensor.stride(), tensor.storage_offset())
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # a wrapper subclass may have no storage
            return facts
        return (*facts, self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages)))


def value_key(leaf: Any) -> Hashable:
    """A key that is equal for equal values; for objects that do not compare by value, the identity."""
    if isinstance(leaf, _BY_VALUE):
        return type(leaf), leaf
    if isinstance(leaf, (float, complex, slice, range)):
        return type(leaf), repr(leaf)  # by text NaN equals itself, and -0.0 differs from 0.0
    return _ByIdentity(leaf)


def _modes() -> Hashable:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))) for kind in ("cpu", "cuda")),
    )


def _module(target: Callable[..., Any]) -> Hashable:
    if not isinstance(target, torch.nn.Module):
        return None
    return (
        tuple(module.training for module in target.modules()),
        tuple((name, _ByIdentity(parameter)) for name, parameter in target.named_parameters(remove_duplicate=False)),
        tuple((name, _ByIdentity(buffer)) for name, buffer in target.named_buffers(remove_duplicate=False)),
    )
