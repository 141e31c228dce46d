"""Fake tensors of `node.meta["val"]`, with symbolic sizes.

Counterpart: torch/_export/serde/serialize.py serialize_tensor_meta, deserialize_tensor_meta
Differs: identities of fake tensors, and memory that inputs share, are kept, since another trace of the graph depends on them.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, inside_fake_kernel, set_bits, storage_key
from refimpl.export.archive.errors import ArchiveError, field, optional
from refimpl.export.archive.symbols import SymbolReader, SymbolWriter
from refimpl.export.archive.values import device_named, dtype_named
from refimpl.symbolic.fake_inputs import set_to_storage, symbolic_fake_mode


class FakeWriter:
    """Writes each fake tensor once."""

    def __init__(self, symbols: SymbolWriter) -> None:
        self._symbols = symbols
        self.records: list[dict[str, Any]] = []
        self._by_id: dict[int, int] = {}
        self._held: list[Any] = []
        self._storages: dict[int, int] = {}

    def index(self, fake: torch.Tensor, where: str, *, is_input: bool) -> int:
        """The number of a fake tensor. Raises ArchiveError for one that is not dense, or of a subclass."""
        known = self._by_id.get(id(fake))
        if known is not None:
            return known
        if type(fake) is not FakeTensor or fake.layout is not torch.strided or fake.is_nested or fake.is_quantized:
            raise ArchiveError(
                seen=f"{where} has for its value a {type(fake).__name__} of layout {fake.layout}",
                expected="dense fake tensors",
                do="for a parameter or buffer save what run_decompositions() returns; else pass and return dense tensors",
            )
        number = self._symbols.number
        record: dict[str, Any] = {
            "dtype": str(fake.dtype)[6:],
            "device": str(fake.fake_device),
            "shape": [number(size) for size in fake.shape],
            "stride": [number(step) for step in fake.stride()],
            "offset": number(fake.storage_offset()),
            "requires_grad": fake.requires_grad,
        }
        if fake.is_conj() or fake.is_neg():
            record |= {"is_conj": fake.is_conj(), "is_neg": fake.is_neg()}
        if is_input:
            record |= {
                "is_leaf": fake.is_leaf,
                "is_parameter": getattr(fake, "_is_param", False),
                "storage": self._storages.setdefault(storage_key(fake), len(self._storages)),
                "nbytes": number(fake.untyped_storage().nbytes()),
            }
        self.records.append(record)
        self._held.append(fake)
        self._by_id[id(fake)] = len(self.records) - 1
        return len(self.records) - 1


class FakeReader:
    """Makes fake tensors, all in one fake mode: the given one, whose ShapeEnv is that of the symbols, or a new one."""

    def __init__(self, symbols: SymbolReader, records: list[Any], mode: FakeTensorMode | None = None) -> None:
        self._symbols = symbols
        self.mode = mode or symbolic_fake_mode(symbols.env, allow_non_fake_inputs=True)
        self._records = records
        self._made: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.Tensor] = {}
        counts: dict[Any, int] = {}
        for record in records:
            key = record.get("storage") if isinstance(record, dict) else None
            counts[key] = counts.get(key, 0) + 1
        self._shared = {key for key, count in counts.items() if key is not None and count > 1}

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The fake tensor of this number. Raises ArchiveError for an invalid number or record."""
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self._records):
            raise ArchiveError(seen=f"the fake tensor number {index!r}", expected=f"one below {len(self._records)}")
        if index not in self._made:
            with self._symbols.env.suppress_guards(), self._symbols.env.origins_off():
                self._made[index] = self._make(self._records[index], f"fakes[{index}]")
        return self._made[index]

    def _make(self, record: Any, where: str) -> torch.Tensor:
        number = self._symbols.number
        dtype, device = (
            dtype_named(field(record, "dtype", str, where)),
            device_named(field(record, "device", str, where)),
        )
        shape = [number(size) for size in field(record, "shape", list, where)]
        stride = [number(step) for step in field(record, "stride", list, where)]
        offset = number(record.get("offset", 0))
        if len(shape) != len(stride) or any(isinstance(n, int) and n < 0 for n in (*shape, *stride, offset)):
            raise ArchiveError(
                seen=f"{where} has shape {shape} and stride {stride}", expected="a size and a stride per dimension"
            )
        key = optional(record, "storage", int, where)
        with inside_fake_kernel(self.mode):
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            is_input = key is not None
            if is_input and (key in self._shared or not self._is_all_of_its_storage(meta, offset, record)):
                whole = self._storage(key, record)
            else:  # the storage size of a result is not kept, and `as_strided` of a meta tensor does not compare with it
                whole = None
                if _expression(offset) != 0:
                    meta = torch.empty(0, dtype=dtype, device="meta").as_strided(shape, stride, offset)
            if whole is not None:
                meta = torch.empty(0, dtype=dtype, device="meta")
                set_to_storage(meta, whole.untyped_storage(), offset, shape, stride)
            if record.get("is_conj") or record.get("is_neg"):
                set_bits(meta, is_conj=bool(record.get("is_conj")), is_neg=bool(record.get("is_neg")))
        return self._with_autograd(FakeTensor(self.mode, meta, device), record, where)

    def _is_all_of_its_storage(self, meta: torch.Tensor, offset: Any, record: Any) -> bool:
        nbytes = self._symbols.number(record.get("nbytes", 0))
        return _expression(offset) == 0 and _expression(meta.untyped_storage().nbytes()) == _expression(nbytes)

    def _storage(self, key: Any, record: Any) -> torch.Tensor:
        if key not in self._storages:
            nbytes = self._symbols.number(record.get("nbytes", 0))
            self._storages[key] = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        return self._storages[key]

    def _with_autograd(self, fake: Any, record: Any, where: str) -> torch.Tensor:
        requires_grad = field(record, "requires_grad", bool, where)
        if requires_grad and not (fake.dtype.is_floating_point or fake.dtype.is_complex):
            raise ArchiveError(
                seen=f"{where}: a {fake.dtype} that requires gradients", expected="floating point or complex"
            )
        fake.requires_grad_(requires_grad)
        if record.get("is_parameter"):
            fake._is_param = True  # isinstance(fake, Parameter) reads it
        if requires_grad and record.get("is_leaf") is False:
            with self.mode, torch.enable_grad():
                return fake.view_as(fake)
        return fake


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number
