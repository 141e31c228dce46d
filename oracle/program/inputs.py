"""Decode a program's arguments from tagged JSON. Nothing is ever unpickled.

Null, booleans, numbers, text, lists, and objects without a "$" key (dicts with text keys) are plain JSON. Everything else is an
object with a tag:

| tag | fields |
|---|---|
| tensor | see below |
| same | id: the object with this `id` earlier in the tree |
| tuple, set, frozenset, size | items |
| dict | items: pairs of key and value (for keys that are not text, or contain "$") |
| slice, range | args: [start, stop, step] |
| float | value: "nan", "inf", "-inf" or hex text |
| complex | real, imag |
| bytes | base64 |
| ellipsis | |
| dtype, layout, memory_format, qscheme | name: "float32", "strided", "channels_last", "per_tensor_affine" |
| device | name: "cpu", "cuda:0"; null for the device the program runs on |
| numpy | dtype, value: a NumPy scalar |
| ndarray | tensor: the spec of its contents |

A `tensor` has shape, dtype ("float32"), and optionally stride, offset, storage_size (in elements), memory_format, device,
layout, requires_grad, parameter, conj, neg, fill (see `oracle.program.fills`), quantizer, and storage: tensors with the same
storage name share it, and the first fill among them fills it. Sparse layouts have indices and values (COO) or
compressed_indices, plain_indices and values (CSR, CSC, BSR, BSC), each a tensor spec, and for COO is_coalesced.
Any tagged object may have an `id` for `same` to refer to.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from oracle.dtypes import COMPRESSED_LAYOUTS
from oracle.errors import UsageError
from oracle.program import Call, JsonTree
from oracle.program.clone import clone_tree, map_tensors
from oracle.program.encode import encode
from oracle.program.fills import bad_input, default_fill, fill_elements, fill_source, parse_scalar, parse_values

__all__ = ["clone_tree", "decode", "decode_call", "encode", "map_tensors"]

_LARGEST_BYTES = 1 << 40  # a larger spec is taken for a typing error
_FIELDS = frozenset({"$", "id", "shape", "dtype", "device", "layout", "requires_grad", "parameter"})  # of every tensor
_STRIDED_FIELDS = _FIELDS | {
    *("stride", "offset", "storage_size", "storage", "memory_format", "conj", "neg", "fill", "quantizer"),
}
_COO_FIELDS = _FIELDS | {"indices", "values", "is_coalesced"}
_COMPRESSED_FIELDS = _FIELDS | {"compressed_indices", "plain_indices", "values"}


def decode(tree: JsonTree, *, seed: int, device: str = "cpu", root: str = "") -> Any:
    """Build the value that a tagged JSON tree describes.

    Random fills depend on `seed` and the path of the tensor, which starts with `root`: calls of one plan get different numbers
    by different roots. `device` is the device of tensors that name none.
    Raises UsageError, with the path, for unknown tags, fields and fills, bad shapes and impossible strides.
    """
    return _Decoder(tree, seed=seed, device=device, root=root).decode(tree, root)


def decode_call(
    call: Call, *, seed: int, device: str = "cpu", root: str = "", sources: dict[int, str] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with input specs. Args and kwargs may share storages and objects.

    If `sources` is given, it is filled with the expression that draws each storage (`oracle.program.fills.fill_source`), by the
    storage's address.
    """
    tree = [call.args or [], call.kwargs or {}]
    decoder = _Decoder(tree, seed=seed, device=device, root=root)
    args, kwargs = decoder.decode(tree, root)
    if sources is not None:
        sources.update(decoder.sources())
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise bad_input(
            root, f"args of {type(args).__name__}, kwargs of {type(kwargs).__name__}", "a list and an object"
        )
    return tuple(args), kwargs


class _Decoder:
    def __init__(self, tree: JsonTree, *, seed: int, device: str, root: str) -> None:
        self._seed = seed
        self._device = device
        self._by_id: dict[str, Any] = {}
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._sharing: dict[str, list[tuple[Mapping[str, Any], str]]] = {}  # storage name -> its specs and their paths
        self._drawn: dict[
            int, tuple[Mapping[str, Any], int, torch.dtype, str]
        ] = {}  # address -> fill, count, dtype, path
        self._collect_sharing(tree, root)

    def decode(self, tree: JsonTree, path: str) -> Any:
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        if isinstance(tree, list):
            return [self.decode(item, f"{path}[{i}]") for i, item in enumerate(tree)]
        if not isinstance(tree, dict):
            raise bad_input(path, f"a {type(tree).__name__}", "JSON")
        if "$" not in tree:
            return {name: self.decode(item, f"{path}[{name!r}]") for name, item in tree.items()}
        rule = _TAGS.get(tree["$"]) if isinstance(tree["$"], str) else None
        if rule is None:
            raise bad_input(path, f"tag {tree['$']!r}", f"one of {', '.join(sorted(_TAGS))}")
        try:
            value = rule(self, tree, path)
        except KeyError as error:
            raise bad_input(path, f"{tree['$']} without {error}", f"the field {error} beside '$'") from error
        if "id" in tree and tree["$"] != "same":
            if tree["id"] in self._by_id:
                raise bad_input(path, f"id {tree['id']!r} a second time", "ids that are unique in the tree")
            self._by_id[tree["id"]] = value
        return value

    def sources(self) -> dict[int, str]:
        """Address of a storage -> the Python expression that draws its elements."""
        return {
            address: fill_source(fill, count=count, dtype=dtype, seed=self._seed, path=path)
            for address, (fill, count, dtype, path) in self._drawn.items()
        }

    def items(self, tree: Mapping[str, Any], path: str, field: str = "items") -> list[Any]:
        items = tree[field]
        if not isinstance(items, list):
            raise bad_input(path, f"{field} {items!r}", "a list")
        return [self.decode(item, f"{path}[{i}]") for i, item in enumerate(items)]

    def same(self, tree: Mapping[str, Any], path: str) -> Any:
        if tree["id"] not in self._by_id:
            raise bad_input(path, f"same as id {tree['id']!r}", "an id that occurs earlier in the tree")
        return self._by_id[tree["id"]]

    def dict(self, tree: Mapping[str, Any], path: str) -> dict[Any, Any]:
        result = {}
        for i, pair in enumerate(tree["items"]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise bad_input(f"{path}[{i}]", f"{pair!r}", "a pair of key and value")
            key = self.decode(pair[0], f"{path}.keys[{i}]")
            try:
                result[key] = self.decode(pair[1], f"{path}[{key!r}]")
            except TypeError as error:
                raise bad_input(path, f"a key of {type(key).__name__}", "a hashable key") from error
        return result

    def device(self, tree: Mapping[str, Any], path: str) -> torch.device:
        name = tree.get("name") or self._device
        try:
            return torch.device(name)
        except (RuntimeError, TypeError) as error:
            raise bad_input(path, f"device {name!r}", "a device such as 'cpu' or 'cuda:0'") from error

    def tensor(self, spec: Mapping[str, Any], path: str) -> torch.Tensor:
        layout = torch.strided if "layout" not in spec else named(torch.layout, spec["layout"], path)
        if layout is torch.sparse_coo:
            result = self._sparse_coo(spec, path)
        elif layout in COMPRESSED_LAYOUTS:
            result = self._sparse_compressed(spec, layout, path)
        elif layout is torch.strided or layout is torch._mkldnn:  # pyright: ignore
            _check_fields(spec, _STRIDED_FIELDS, path)
            result = self._quantised(spec, path) if "quantizer" in spec else self._strided(spec, path)
            result = result.to_mkldnn() if layout is not torch.strided else result
        else:
            raise bad_input(path, f"layout {spec['layout']!r}", "strided, sparse_* or _mkldnn")
        requires_grad = bool(spec.get("requires_grad", False))
        if requires_grad and not (result.is_floating_point() or result.is_complex()):
            raise bad_input(path, f"requires_grad of {result.dtype}", "a float or complex dtype")
        if spec.get("parameter", False):
            return torch.nn.Parameter(result, requires_grad=requires_grad)
        return result.requires_grad_() if requires_grad else result

    def _strided(self, spec: Mapping[str, Any], path: str) -> torch.Tensor:
        geometry = _Geometry(spec, path)
        device = self.device({"name": spec.get("device")}, path)
        if "storage" in spec:
            storage = self._shared_storage(spec["storage"], device)
        else:
            storage = self._fill(spec, geometry, geometry.storage_size, device, path).untyped_storage()
        result = torch.empty(0, dtype=geometry.dtype, device=device)
        result.set_(storage, geometry.offset, geometry.shape, geometry.stride)
        if spec.get("conj", False):
            result = result.conj()
        return torch._neg_view(result) if spec.get("neg", False) else result

    def _fill(
        self, spec: Mapping[str, Any], geometry: _Geometry, count: int, device: torch.device, path: str
    ) -> torch.Tensor:
        """The elements of the storage, in storage order."""
        if device.type == "meta":
            return torch.empty(count, dtype=geometry.dtype, device=device)
        fill = spec.get("fill") or default_fill(geometry.dtype)
        if not isinstance(fill, dict):
            raise bad_input(path, f"fill {fill!r}", "an object with a `kind`")
        if fill.get("kind") != "values":
            elements = fill_elements(fill, count=count, dtype=geometry.dtype, seed=self._seed, path=path).to(device)
            self._drawn[elements.untyped_storage().data_ptr()] = (fill, count, geometry.dtype, path)
            return elements
        numel = math.prod(geometry.shape)
        values = parse_values(fill.get("values"), count=numel, dtype=geometry.dtype, path=path)
        if geometry.is_contiguous and count == numel:
            return values.to(device)
        where = torch.arange(count).as_strided(geometry.shape, geometry.stride, geometry.offset).reshape(-1)
        raw = torch.zeros(count, dtype=geometry.dtype).view(torch.uint8).reshape(count, geometry.dtype.itemsize)
        raw[where] = values.view(torch.uint8).reshape(
            numel, geometry.dtype.itemsize
        )  # as bytes, since all dtypes support that
        return raw.reshape(-1).view(geometry.dtype).to(device)

    def _collect_sharing(self, tree: JsonTree, path: str) -> None:
        if isinstance(tree, list):
            for i, item in enumerate(tree):
                self._collect_sharing(item, f"{path}[{i}]")
        elif isinstance(tree, dict):
            if tree.get("$") == "tensor" and "storage" in tree:
                self._sharing.setdefault(tree["storage"], []).append((tree, path))
            for name, item in tree.items():
                self._collect_sharing(item, f"{path}[{name!r}]")

    def _shared_storage(self, name: str, device: torch.device) -> torch.UntypedStorage:
        if name not in self._storages:
            users = [(spec, _Geometry(spec, path), path) for spec, path in self._sharing[name]]
            nbytes = max(geometry.storage_size * geometry.dtype.itemsize for _, geometry, _ in users)
            filler = next((user for user in users if user[0].get("fill")), users[0])
            spec, geometry, path = filler
            count = -(-nbytes // geometry.dtype.itemsize)
            self._storages[name] = self._fill(spec, geometry, count, device, path).untyped_storage()
        storage = self._storages[name]
        if storage.device != torch.empty(0, device=device).device:
            raise bad_input(f"storage {name!r}", f"devices {storage.device} and {device}", "one device per storage")
        return storage

    def _sparse_coo(self, spec: Mapping[str, Any], path: str) -> torch.Tensor:
        _check_fields(spec, _COO_FIELDS, path)
        indices = self.tensor(spec["indices"], f"{path}.indices")
        values = self.tensor(spec["values"], f"{path}.values")
        is_coalesced = spec.get("is_coalesced")
        return self._sparse(
            path,
            lambda: torch.sparse_coo_tensor(
                indices, values, _shape(spec, path), is_coalesced=is_coalesced, check_invariants=True
            ),
        )

    def _sparse_compressed(self, spec: Mapping[str, Any], layout: torch.layout, path: str) -> torch.Tensor:
        _check_fields(spec, _COMPRESSED_FIELDS, path)
        names = ("compressed_indices", "plain_indices", "values")
        parts = [self.tensor(spec[name], f"{path}.{name}") for name in names]
        return self._sparse(
            path,
            lambda: torch.sparse_compressed_tensor(
                parts[0], parts[1], parts[2], _shape(spec, path), layout=layout, check_invariants=True
            ),
        )

    def _sparse(self, path: str, build: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            return build()
        except (RuntimeError, TypeError, ValueError) as error:
            raise bad_input(
                path, f"a sparse tensor that is none: {error}", "indices, values and shape that fit"
            ) from error

    def _quantised(self, spec: Mapping[str, Any], path: str) -> torch.Tensor:
        dtype, quantizer = named(torch.dtype, spec.get("dtype"), path), spec["quantizer"]
        stored = str(dtype).removeprefix("torch.q")  # quint8 is stored as uint8
        if not isinstance(getattr(torch, stored, None), torch.dtype):
            raise bad_input(path, f"a quantizer for {dtype}", "dtype quint8, qint8 or qint32")
        plain = {name: item for name, item in spec.items() if name not in ("quantizer", "requires_grad", "layout")}
        plain["dtype"] = stored
        numbers = self._strided(plain, path)
        try:
            if "axis" in quantizer:
                scales = torch.tensor([_real(scale, path) for scale in quantizer["scales"]], dtype=torch.float64)
                zeros = torch.tensor(quantizer["zero_points"], dtype=torch.int64)
                return torch._make_per_channel_quantized_tensor(numbers, scales, zeros, quantizer["axis"])
            scale = _real(quantizer["scale"], path)
            return torch._make_per_tensor_quantized_tensor(numbers, scale, quantizer["zero_point"])
        except (RuntimeError, TypeError, IndexError) as error:
            raise bad_input(path, f"quantizer {quantizer!r}: {error}", "scale(s), zero point(s) and axis") from error


class _Geometry:
    """Shape, stride, offset and storage size of a strided spec, checked."""

    __slots__ = ("dtype", "is_contiguous", "offset", "shape", "storage_size", "stride")

    def __init__(self, spec: Mapping[str, Any], path: str) -> None:
        self.dtype = named(torch.dtype, spec.get("dtype", "float32"), path)
        self.shape = _shape(spec, path)
        contiguous = contiguous_stride(self.shape)
        self.stride = contiguous
        if "memory_format" in spec:
            memory_format = named(torch.memory_format, spec["memory_format"], path)
            try:
                self.stride = torch.empty(self.shape, device="meta", memory_format=memory_format).stride()
            except RuntimeError as error:
                raise bad_input(
                    path, f"memory_format of shape {list(self.shape)}: {error}", "a shape it fits"
                ) from error
        if "stride" in spec:
            self.stride = _sizes(spec["stride"], "stride", path)
            if len(self.stride) != len(self.shape):
                raise bad_input(path, f"stride {list(self.stride)}", f"one stride for each of shape {list(self.shape)}")
        self.offset = _size(spec.get("offset", 0), "offset", path)
        extent = 0 if 0 in self.shape else 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        self.storage_size = _size(spec.get("storage_size", self.offset + extent), "storage_size", path)
        if self.storage_size < self.offset + extent:
            raise bad_input(path, f"storage_size {self.storage_size}", f"at least {self.offset + extent} elements")
        if self.storage_size * self.dtype.itemsize > _LARGEST_BYTES:
            raise bad_input(path, f"a tensor of {self.storage_size} elements", f"at most {_LARGEST_BYTES} bytes")
        self.is_contiguous = self.stride == contiguous and self.offset == 0


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _shape(spec: Mapping[str, Any], path: str) -> tuple[int, ...]:
    return _sizes(spec["shape"], "shape", path)


def _sizes(value: Any, what: str, path: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise bad_input(path, f"{what} {value!r}", "a list of sizes")
    return tuple(_size(size, what, path) for size in value)


def _size(value: Any, what: str, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value >= 2**63:
        raise bad_input(path, f"{what} {value!r}", "integers of zero and more")
    return value


def named(kind: type, name: Any, path: str) -> Any:
    """The object of `kind` (torch.dtype, torch.layout, ...) called torch.<name>. UsageError if there is none."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, kind):
        raise bad_input(path, f"{kind.__name__} {name!r}", f"the name of a torch.{kind.__name__}, without 'torch.'")
    return found


def _check_fields(spec: Mapping[str, Any], known: frozenset[str], path: str) -> None:
    unknown = sorted(set(spec) - known)
    if unknown:
        raise bad_input(path, f"tensor fields {unknown}", f"among {sorted(known - {'$'})}")


def _decode_slice(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> slice:
    args = decoder.items(tree, path, "args")
    if len(args) != 3:
        raise bad_input(path, f"slice of {len(args)} args", "[start, stop, step]")
    return slice(*args)


def _decode_range(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> range:
    args = decoder.items(tree, path, "args")
    if len(args) != 3 or not all(isinstance(arg, int) for arg in args) or args[2] == 0:
        raise bad_input(path, f"range of {args}", "[start, stop, step] of integers, step not 0")
    return range(*args)


def _decode_float(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> float:
    return _real(tree["value"], path)


def _real(value: Any, path: str) -> float:
    number = parse_scalar(value, path)
    if isinstance(number, complex):
        raise bad_input(path, f"number {value!r}", "a real number")
    return float(number)


def _decode_complex(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> complex:
    value = parse_scalar([tree["real"], tree["imag"]], path)
    return complex(value)


def _decode_bytes(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> bytes:
    try:
        return base64.b64decode(tree["base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise bad_input(path, f"bytes that are not base64: {error}", "base64 text") from error


def _decode_numpy(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> Any:
    try:
        return np.dtype(tree["dtype"]).type(decoder.decode(tree["value"], path))
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_input(path, f"NumPy scalar: {error}", "a dtype and a value of it") from error


def _decode_hashable(kind: type) -> Callable[[_Decoder, Mapping[str, Any], str], Any]:
    def rule(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> Any:
        try:
            return kind(decoder.items(tree, path))
        except (TypeError, RuntimeError) as error:
            raise bad_input(path, f"{kind.__name__}: {error}", f"items that a {kind.__name__} can hold") from error

    return rule


def _refuse_generator(decoder: _Decoder, tree: Mapping[str, Any], path: str) -> Any:
    raise UsageError(
        seen=f"input {path}: a torch.Generator",
        expected="random numbers drawn inside the program",
        do="create and seed the generator in the program's source: a shared one would make two runs differ",
    )


_Rule = Callable[[_Decoder, Mapping[str, Any], str], Any]
_TAGS: dict[str, _Rule] = {
    "tensor": _Decoder.tensor,
    "same": _Decoder.same,
    "tuple": lambda decoder, tree, path: tuple(decoder.items(tree, path)),
    "dict": _Decoder.dict,
    "set": _decode_hashable(set),
    "frozenset": _decode_hashable(frozenset),
    "size": _decode_hashable(torch.Size),
    "slice": _decode_slice,
    "range": _decode_range,
    "float": _decode_float,
    "complex": _decode_complex,
    "bytes": _decode_bytes,
    "ellipsis": lambda decoder, tree, path: ...,
    "dtype": lambda decoder, tree, path: named(torch.dtype, tree["name"], path),
    "layout": lambda decoder, tree, path: named(torch.layout, tree["name"], path),
    "memory_format": lambda decoder, tree, path: named(torch.memory_format, tree["name"], path),
    "qscheme": lambda decoder, tree, path: named(torch.qscheme, tree["name"], path),
    "device": _Decoder.device,
    "numpy": _decode_numpy,
    "ndarray": lambda decoder, tree, path: decoder.tensor(tree["tensor"], f"{path}.tensor").numpy(),
    "generator": _refuse_generator,
}
