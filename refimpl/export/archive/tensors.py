"""Records of tensors: each storage once in safetensors, each tensor as a view of a storage in JSON.

Counterpart: torch/export/pt2_archive/_package.py, which pickles tensors of other classes
Differs: aliases and object identities are kept.

Note [What is not kept]
Autograd graphs, gradients, hooks and Python attributes of tensors; pinned and shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch

from refimpl._torch import set_bits, storage_key
from refimpl.export.archive.errors import ArchiveError, field, optional, typed
from refimpl.export.archive.values import device_named, dtype_named
from refimpl.trace.dtypes import is_common

_KINDS: dict[type, str] = {torch.Tensor: "tensor", torch.nn.Parameter: "parameter"}
_EXPECTED = "dense tensors and parameters with data"
_MEMBER = "storage."


class TensorWriter:
    """Collects tensors."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._by_id: dict[int, int] = {}
        self._held: list[torch.Tensor] = []  # keeps ids and storages from being reused
        self._storages: dict[int, int] = {}
        self._data: list[torch.Tensor] = []
        self._devices: list[str] = []

    def index(self, tensor: torch.Tensor, where: str) -> int:
        """The number of a tensor. Raises ArchiveError for tensors that are not dense, or have no data."""
        known = self._by_id.get(id(tensor))
        if known is not None:
            return known
        _check(tensor, where)
        is_buffer = isinstance(tensor, torch.nn.Buffer)
        self._records.append(
            {
                "kind": "buffer" if is_buffer else _KINDS[type(tensor)],
                "storage": self._storage(tensor),
                "dtype": str(tensor.dtype)[6:],
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "offset": tensor.storage_offset(),
                "requires_grad": tensor.requires_grad,
                "is_conj": tensor.is_conj(),
                "is_neg": tensor.is_neg(),
                "persistent": getattr(tensor, "persistent", True) if is_buffer else None,
            }
        )
        self._held.append(tensor)
        self._by_id[id(tensor)] = len(self._records) - 1
        return len(self._records) - 1

    def _storage(self, tensor: torch.Tensor) -> int:
        key = storage_key(tensor)
        if key not in self._storages:
            self._storages[key] = len(self._data)
            storage = tensor.untyped_storage()
            # All supported versions of safetensors have these dtypes; storages of others are saved as bytes.
            is_typed = (
                is_common(tensor.dtype) and not tensor.is_complex() and storage.nbytes() % tensor.element_size() == 0
            )
            dtype = tensor.dtype if is_typed else torch.uint8
            count = storage.nbytes() // dtype.itemsize
            whole = torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (count,), (1,))
            self._data.append(whole.cpu())
            self._devices.append(str(tensor.device))
        return self._storages[key]

    def record(self) -> dict[str, Any]:
        """The JSON record of all tensors and storages."""
        return {"tensors": self._records, "storages": [{"device": device} for device in self._devices]}

    def data(self) -> bytes:
        """The storages, as safetensors."""
        return safetensors.torch.save({f"{_MEMBER}{number}": data for number, data in enumerate(self._data)})


def _check(tensor: torch.Tensor, where: str) -> None:
    kind = type(tensor)
    if kind not in _KINDS:
        seen = f"a {kind.__module__}.{kind.__qualname__}"
    elif tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_mkldnn:
        seen = (
            f"a tensor of layout {tensor.layout}{' (nested)' * tensor.is_nested}{' (quantized)' * tensor.is_quantized}"
        )
    elif tensor.device.type == "meta":
        seen = "a meta tensor, which has no data"
    else:
        return
    raise ArchiveError(seen=f"{where} is {seen}", expected=_EXPECTED, do="convert it before the export")


class TensorReader:
    """All tensors of an archive, made when it is built."""

    def __init__(self, record: Any, data: bytes) -> None:
        """Raises ArchiveError if JSON and data do not match, and for devices that this process does not have."""
        storages = _loaded(data)
        described = field(record, "storages", list, "tensors")
        if sorted(storages) != sorted(f"{_MEMBER}{number}" for number in range(len(described))):
            raise ArchiveError(
                seen=f"storages {sorted(storages)}", expected=f"{len(described)} storages, numbered from 0"
            )
        placed = [
            _placed(storages[f"{_MEMBER}{number}"], field(each, "device", str, "a storage"))
            for number, each in enumerate(described)
        ]
        records = field(record, "tensors", list, "tensors")
        self._tensors = [_made(each, placed, f"tensors[{number}]") for number, each in enumerate(records)]

    def __getitem__(self, index: Any) -> torch.Tensor:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self._tensors):
            raise ArchiveError(seen=f"the tensor number {index!r}", expected=f"one below {len(self._tensors)}")
        return self._tensors[index]


def _loaded(data: bytes) -> Mapping[str, torch.Tensor]:
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ArchiveError(
            seen=f"tensors that safetensors cannot read: {error}", expected="a file as it was saved"
        ) from error


def _placed(data: torch.Tensor, device: str) -> torch.Tensor:
    target = device_named(device)
    try:
        return data.to(target)
    except (RuntimeError, AssertionError) as error:
        raise ArchiveError(
            seen=f"tensors on {device}, which this process cannot use ({str(error).splitlines()[0]})",
            expected="the devices that the program was exported with",
            do=f"load it where there is {device}, or move the module before the export",
        ) from error


def _made(record: Any, storages: Sequence[torch.Tensor], where: str) -> torch.Tensor:
    dtype = dtype_named(field(record, "dtype", str, where))
    shape, stride = _sizes(record, "shape", where), _sizes(record, "stride", where)
    offset, number = field(record, "offset", int, where), field(record, "storage", int, where)
    if not 0 <= number < len(storages):
        raise ArchiveError(seen=f"{where} is in storage {number}", expected=f"one below {len(storages)}")
    storage = storages[number].untyped_storage()
    _check_extent(shape, stride, offset, dtype.itemsize, storage.nbytes(), where)
    tensor = torch.empty(0, dtype=dtype, device=storages[number].device).set_(storage, offset, shape, stride)
    set_bits(tensor, is_conj=field(record, "is_conj", bool, where), is_neg=field(record, "is_neg", bool, where))
    requires_grad, kind = field(record, "requires_grad", bool, where), field(record, "kind", str, where)
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise ArchiveError(seen=f"{where}: a {dtype} that requires gradients", expected="floating point or complex")
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad)
    if kind == "buffer":
        tensor = torch.nn.Buffer(tensor, persistent=optional(record, "persistent", bool, where) is not False)
    elif kind != "tensor":
        raise ArchiveError(seen=f"{where}.kind is {kind!r}", expected="tensor, parameter or buffer")
    return tensor.requires_grad_(requires_grad)


def _sizes(record: Any, name: str, where: str) -> list[int]:
    found = [typed(each, int, f"{where}.{name}") for each in field(record, name, list, where)]
    if any(each < 0 for each in found):
        raise ArchiveError(seen=f"{where}.{name} is {found}", expected="no negative numbers")
    return found


def _check_extent(shape: list[int], stride: list[int], offset: int, itemsize: int, nbytes: int, where: str) -> None:
    """Raises ArchiveError for a view larger than its storage, which `set_` would enlarge."""
    if len(shape) != len(stride) or offset < 0:
        raise ArchiveError(
            seen=f"{where} has shape {shape}, stride {stride}, offset {offset}",
            expected="a size and a stride per dimension",
        )
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * itemsize > nbytes:
        raise ArchiveError(seen=f"{where} ends at byte {(last + 1) * itemsize}", expected=f"a view of {nbytes} bytes")
