"""Encode values as tagged JSON, the exact inverse of `oracle.program.inputs.decode`.

Tensors become specs with their data: a few plain numbers inline, everything else as base64 of the storage.
Shared storages, and tensors that occur several times, are written once.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from oracle.dtypes import ARITHMETIC_FLOATS, ARITHMETIC_INTEGERS
from oracle.errors import UsageError
from oracle.program import JsonTree
from oracle.program.fills import parse_values

_INLINE_ELEMENTS = 16
_INLINE_DTYPES = ARITHMETIC_FLOATS | ARITHMETIC_INTEGERS | {torch.bool}
_LARGEST_BYTES = 64 << 20  # limit of one storage, since a plan is JSON and not a data set
_EXACT_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def encode(value: Any) -> JsonTree:
    """Tagged JSON of `value`. `decode` with any seed returns an equal value with equal strides and aliases.

    Raises UsageError, with the path, for values without a JSON form: functions, generators, tensor subclasses, nested
    tensors, storages above 64 MiB.
    """
    return _Encoder(value).encode(value, "")


class _Encoder:
    def __init__(self, value: Any) -> None:
        users: dict[int, set[int]] = {}  # address of a storage -> its tensor objects
        occurrences: dict[int, int] = {}
        for tensor in _tensors(value):
            occurrences[id(tensor)] = occurrences.get(id(tensor), 0) + 1
            if _is_strided(tensor):
                users.setdefault(tensor.untyped_storage()._cdata, set()).add(id(tensor))
        shared = [address for address, ids in users.items() if len(ids) > 1]
        self._storage_names = {address: f"s{i}" for i, address in enumerate(shared)}
        repeated = [key for key, count in occurrences.items() if count > 1]
        self._ids = {key: f"t{i}" for i, key in enumerate(repeated)}
        self._said: set[str] = set()  # names and ids already in the JSON

    def encode(self, value: Any, path: str) -> JsonTree:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$": "float", "value": _float_text(value)}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if type(value) is list:
            return self._items(value, path)
        if type(value) is dict:
            return self._dict(value, path)
        return self._tagged(value, path)

    def _items(self, values: Any, path: str) -> list[JsonTree]:
        return [self.encode(item, f"{path}[{i}]") for i, item in enumerate(values)]

    def _dict(self, value: dict[Any, Any], path: str) -> JsonTree:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self.encode(item, f"{path}[{key!r}]") for key, item in value.items()}
        pairs = [
            [self.encode(key, f"{path}.keys"), self.encode(item, f"{path}[{key!r}]")] for key, item in value.items()
        ]
        return {"$": "dict", "items": pairs}

    def _tagged(self, value: Any, path: str) -> JsonTree:
        match value:
            case torch.Size():
                return {"$": "size", "items": self._items(value, path)}
            case tuple() if type(value) is tuple:
                return {"$": "tuple", "items": self._items(value, path)}
            case set() | frozenset():
                items = sorted(self._items(value, path), key=repr)  # sets have no order, but the JSON must be stable
                return {"$": type(value).__name__, "items": items}
            case slice():
                return {"$": "slice", "args": self._items((value.start, value.stop, value.step), path)}
            case range():
                return {"$": "range", "args": [value.start, value.stop, value.step]}
            case complex() if type(value) is complex:
                return {"$": "complex", "real": _float_json(value.real), "imag": _float_json(value.imag)}
            case bytes():
                return {"$": "bytes", "base64": base64.b64encode(value).decode()}
            case torch.device():
                return {"$": "device", "name": str(value)}
            case np.generic():
                return {"$": "numpy", "dtype": value.dtype.str, "value": self.encode(value.item(), path)}
            case np.ndarray():
                return {"$": "ndarray", "tensor": self._tensor(torch.from_numpy(value), path)}
            case _:
                return self._constant(value, path)

    def _constant(self, value: Any, path: str) -> JsonTree:
        if value is Ellipsis:
            return {"$": "ellipsis"}
        for kind in (torch.dtype, torch.layout, torch.memory_format, torch.qscheme):
            if isinstance(value, kind):
                return {"$": kind.__name__, "name": str(value).removeprefix("torch.")}
        raise UsageError(
            seen=f"input {path or 'tree'}: a {type(value).__module__}.{type(value).__qualname__}",
            expected="tensors, numbers, text, containers and torch's small types",
            do="build this value inside the program's source, in `inputs(call)`",
        )

    def _tensor(self, tensor: torch.Tensor, path: str) -> JsonTree:
        name = self._ids.get(id(tensor))
        if name in self._said:
            return {"$": "same", "id": name}
        spec: dict[str, Any] = {"$": "tensor", "shape": list(tensor.shape), "dtype": _name_of(tensor.dtype)}
        if name is not None:
            spec["id"] = name
            self._said.add(name)
        if type(tensor) not in _EXACT_TYPES or tensor.is_nested:
            raise UsageError(
                seen=f"input {path or 'tree'}: a tensor of class {type(tensor).__qualname__}, layout {tensor.layout}",
                expected="a plain tensor or parameter",
                do="build this value inside the program's source, in `inputs(call)`",
            )
        if tensor.requires_grad:
            spec["requires_grad"] = True
        if type(tensor) is torch.nn.Parameter:
            spec["parameter"] = True
        if tensor.device.type != "cpu":
            spec["device"] = str(tensor.device)
        data = tensor.detach()
        if data.layout is torch.sparse_coo:
            spec.update(layout="sparse_coo", is_coalesced=data.is_coalesced())
            spec["indices"] = self._tensor(data._indices(), path)
            spec["values"] = self._tensor(data._values(), path)
        elif data.layout is not torch.strided and data.layout is not torch._mkldnn:  # pyright: ignore
            spec["layout"] = str(data.layout).removeprefix("torch.")
            is_row = data.layout in (torch.sparse_csr, torch.sparse_bsr)
            compressed, plain = ("crow_indices", "col_indices") if is_row else ("ccol_indices", "row_indices")
            spec["compressed_indices"] = self._tensor(getattr(data, compressed)(), path)
            spec["plain_indices"] = self._tensor(getattr(data, plain)(), path)
            spec["values"] = self._tensor(data.values(), path)
        elif data.is_quantized:
            spec["quantizer"] = _quantizer_of(data)
            spec |= _strided_fields(data.int_repr())
        elif data.layout is not torch.strided:
            spec["layout"] = "_mkldnn"
            spec |= _strided_fields(data.to_dense())
        else:
            spec |= self._strided(data)
        return spec

    def _strided(self, data: torch.Tensor) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if data.is_conj():
            spec["conj"] = True
            data = data.conj()
        if data.is_neg():
            spec["neg"] = True
            data = torch._neg_view(data)
        storage = data.untyped_storage()
        name = self._storage_names.get(storage._cdata)
        if name is None:
            return spec | _strided_fields(data)
        spec |= _strided_fields(data, is_whole=True, with_fill=name not in self._said)
        self._said.add(name)
        return spec | {"storage": name}


def _strided_fields(data: torch.Tensor, *, is_whole: bool = False, with_fill: bool = True) -> dict[str, Any]:
    """Geometry and contents of a tensor. `is_whole`: the contents of the whole storage, since other tensors share it."""
    spec: dict[str, Any] = {}
    offset = int(data.storage_offset())
    if not data.is_contiguous() or data.numel() == 0 or 1 in data.shape:
        spec["stride"] = list(data.stride())  # empty and size-1 tensors are contiguous with any strides
    if offset:
        spec["offset"] = offset
    available = data.untyped_storage().nbytes() // data.dtype.itemsize
    extent = 0 if 0 in data.shape else 1 + sum((n - 1) * s for n, s in zip(data.shape, data.stride(), strict=True))
    count = available if is_whole else min(available, max(offset + extent, 0))
    if count * data.dtype.itemsize > _LARGEST_BYTES:
        raise UsageError(
            seen=f"a tensor with {count * data.dtype.itemsize} bytes of storage",
            expected=f"at most {_LARGEST_BYTES}",
            do="give it a random fill instead of its data, or build it in `inputs(call)`",
        )
    if count != offset + extent:
        spec["storage_size"] = count
    if with_fill and data.device.type != "meta":
        spec["fill"] = _contents(data, count)
    return spec


def _contents(data: torch.Tensor, count: int) -> dict[str, Any]:
    flat = torch.empty(0, dtype=data.dtype, device=data.device)
    flat.set_(data.untyped_storage(), 0, (count,), (1,))
    flat = flat.cpu()
    is_plain = data.is_contiguous() and count == data.numel() <= _INLINE_ELEMENTS
    if is_plain and data.dtype in _INLINE_DTYPES:
        values = [_float_json(value) if isinstance(value, float) else value for value in flat.tolist()]
        again = parse_values(values, count=count, dtype=data.dtype, path="")
        if torch.equal(again.view(torch.uint8), flat.view(torch.uint8)):  # text does not preserve the payload of NaN
            return {"kind": "values", "values": values}
    raw = flat.view(torch.uint8).numpy().tobytes() if count else b""
    return {"kind": "raw", "base64": base64.b64encode(raw).decode()}


def _quantizer_of(data: torch.Tensor) -> dict[str, Any]:
    if data.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scale": data.q_scale(), "zero_point": data.q_zero_point()}
    return {
        "scales": data.q_per_channel_scales().to(torch.float64).tolist(),
        "zero_points": data.q_per_channel_zero_points().to(torch.int64).tolist(),
        "axis": data.q_per_channel_axis(),
    }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        if value.layout is torch.sparse_coo:
            yield from (value._indices(), value._values())
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _tensors(item)


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _float_json(value: float) -> float | str:
    return value if math.isfinite(value) else _float_text(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"
