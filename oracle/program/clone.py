"""Copy input trees, so that no run of a program sees the mutations of another.

A copy has everything that a program can observe: values, shape, stride, storage offset, dtype, device, layout, `requires_grad`,
class, conjugate and negative bits, attributes set on the tensor, and aliasing. Copying a few contiguous leaf tensors is on the
hot path of every sweep and must stay below 50 microseconds.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

_ATOMS = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(Ellipsis),
        range,
        torch.Size,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

Leaf = Callable[[torch.Tensor], Any]
Unknown = Callable[[Any, dict[int, Any]], Any]


def clone_tree(value: Any) -> Any:
    """A deep copy of nested inputs.

    Tensors that share a storage share the copied storage; an object that occurs twice occurs twice in the copy.
    Tensors that require grad become leaves. Other objects are deep-copied, or kept if they cannot be copied (running generators,
    locks, objects with C state).
    """
    return rebuild(value, leaf=_Cloner().clone, unknown=_deepcopy_or_keep)


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """The same tree with `fn(tensor)` in place of every tensor; `fn` is called once per tensor object.

    Containers are new, other objects are kept.
    """
    return rebuild(value, leaf=fn, unknown=lambda other, memo: other)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a strided tensor in row-major order, as a flat uint8 tensor; a view if its strides permit."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride() != (1,):  # `contiguous` keeps the stride of a single element, for which `view` then raises
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def rebuild(value: Any, *, leaf: Leaf, unknown: Unknown) -> Any:
    """Rebuild a tree of containers. An object that occurs twice is rebuilt once."""
    return _rebuild(value, leaf, unknown, {})


def _rebuild(value: Any, leaf: Leaf, unknown: Unknown, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    key = id(value)  # stays valid, since the originals outlive this walk
    if key in memo:
        return memo[key]
    if isinstance(value, torch.Tensor):
        memo[key] = result = leaf(value)
        return result
    if kind is tuple:
        memo[key] = result = tuple([_rebuild(item, leaf, unknown, memo) for item in value])
        return result
    if kind is list:
        memo[key] = result = []  # before its items, for lists that contain themselves
        result.extend([_rebuild(item, leaf, unknown, memo) for item in value])
        return result
    if kind is dict:
        memo[key] = result = {}
        for name, item in value.items():
            result[_rebuild(name, leaf, unknown, memo)] = _rebuild(item, leaf, unknown, memo)
        return result
    memo[key] = result = _rebuild_other(value, leaf, unknown, memo)
    return result


def _rebuild_other(value: Any, leaf: Leaf, unknown: Unknown, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if isinstance(value, tuple):
        items = [_rebuild(item, leaf, unknown, memo) for item in value]
        if hasattr(kind, "_fields"):  # a namedtuple
            return kind(*items)
        return kind(items)  # torch.return_types and other struct sequences
    if isinstance(value, (dict, list)):  # OrderedDict, defaultdict, ...: a shallow copy keeps their own state
        memo[id(value)] = result = copy.copy(value)
        for name, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            result[name] = _rebuild(item, leaf, unknown, memo)
        return result
    if isinstance(value, (set, frozenset)):
        return kind([_rebuild(item, leaf, unknown, memo) for item in value])
    if isinstance(value, slice):
        return slice(*[_rebuild(item, leaf, unknown, memo) for item in (value.start, value.stop, value.step)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        memo[id(value)] = result = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                item = _rebuild(getattr(value, field.name), leaf, unknown, memo)
                object.__setattr__(result, field.name, item)  # frozen dataclasses too
        return result
    return unknown(value, memo)


def _deepcopy_or_keep(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Generator):
        return value.clone_state()
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # copying runs code of any class; then the original is kept
        return value


class _Cloner:
    """Copies tensors of one tree; remembers copied storages so that aliases stay aliases."""

    __slots__ = ("_storages",)

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}  # address of the original's storage -> the copy

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        kind = type(tensor)
        if kind not in _PLAIN_TENSORS or not has_plain_storage(tensor):
            return _clone_opaque(tensor)
        with torch._C.DisableTorchFunction():  # the mode Widened would change the dtype
            result = self._clone_strided(tensor)
        requires_grad = tensor.requires_grad
        if kind is torch.nn.Parameter:
            result = torch.nn.Parameter(result, requires_grad=requires_grad)
        elif requires_grad:
            result.requires_grad_()
        return keep_attributes(tensor, result)

    def _clone_strided(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        nbytes = storage.nbytes()
        flags = tensor.is_conj(), tensor.is_neg()
        if known is None:
            if nbytes == tensor.nbytes and not any(flags) and tensor.is_contiguous() and nbytes:
                result = tensor.detach().clone()
                self._storages[key] = result.untyped_storage()
                return result
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            known = self._storages[key] = flat.clone().untyped_storage()
        return view_of_storage(known, like=tensor, dtype=tensor.dtype)


def has_plain_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor is fully described by shape, stride, offset, dtype and storage."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not torch._is_functional_tensor(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # pyright: ignore
    )


def view_of_storage(storage: torch.UntypedStorage, *, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on `storage` with the sizes, strides, offset, conjugate and negative bits of `like`."""
    result = torch.empty(0, dtype=dtype, device=like.device)
    result.set_(storage, like.storage_offset(), like.size(), like.stride())
    if like.is_conj():
        result = result.conj()
    if like.is_neg():
        result = torch._neg_view(result)
    return result


def keep_attributes(original: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy attributes that were set on a tensor, such as marks of dynamic dimensions, to its copy."""
    if original.__dict__:
        vars(result).update(vars(original))
    return result


def _clone_opaque(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a sparse, quantised, opaque or subclass tensor by its own `clone`. Aliasing is lost."""
    result = tensor.detach().clone()
    if type(result) is not type(tensor) and isinstance(tensor, torch.nn.Parameter):
        result = torch.nn.Parameter(result, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        result.requires_grad_()
    return result
