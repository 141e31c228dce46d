"""Values in JSON: None, bools, ints and strings as they are, lists as arrays, others as an object with one tag.

Counterpart: torch/_export/serde/schema.py Argument
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.export.archive.errors import ArchiveError, typed
from refimpl.export.archive.symbols import SymbolReader, SymbolWriter

_DTYPES = {str(value)[6:]: value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_LAYOUTS = {str(value)[6:]: value for value in vars(torch).values() if isinstance(value, torch.layout)}
_MEMORY_FORMATS = {str(value)[6:]: value for value in vars(torch).values() if isinstance(value, torch.memory_format)}

# Reads or writes values that only some places can have: nodes, tensors.
Special = Callable[[Any], Any]


class ValueWriter:
    """Writes values. `special` returns the record of a node or tensor where these are allowed, and None for others."""

    def __init__(self, symbols: SymbolWriter, special: Special) -> None:
        self._symbols = symbols
        self._special = special

    def record(self, value: Any, where: str) -> Any:
        """The record of a value. Raises ArchiveError, with `where`, for unsupported values."""
        own = self._special(value)
        if own is not None:
            return own
        if isinstance(value, SYMBOLIC_TYPES):
            return self._symbols.symbolic(value)
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, complex):
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if value is ...:
            return {"ellipsis": True}
        plain = _torch_record(value)
        return self._container(value, where) if plain is None else plain

    def _container(self, value: Any, where: str) -> Any:
        def inner(items: Any) -> list[Any]:
            return [self.record(item, where) for item in items]

        if isinstance(value, torch.Size):
            return {"size": inner(value)}
        if isinstance(value, slice):
            return {"slice": inner((value.start, value.stop, value.step))}
        if isinstance(value, range):
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, list):
            return inner(value)
        if type(value) is tuple:
            return {"tuple": inner(value)}
        if isinstance(value, dict):
            return {"dict": [inner(pair) for pair in value.items()]}
        raise ArchiveError(
            seen=f"{where} has a value of type {type(value).__module__}.{type(value).__qualname__}: {repr(value)[:80]}",
            expected="numbers, strings, dtypes, devices, layouts, memory formats, symbols, tensors, and containers of them",
            do="leave it out of the program: compute it beforehand, or make it a tensor",
        )


def _torch_record(value: Any) -> dict[str, str] | None:
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)[6:]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.layout):
        return {"layout": str(value)[6:]}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value)[6:]}
    return None


class ValueReader:
    """Reads values. `special` has a function for each further tag, such as "node"."""

    def __init__(self, symbols: SymbolReader, special: Mapping[str, Special]) -> None:
        self._symbols = symbols
        self._special = special
        self._tags: dict[str, Special] = {
            "float": lambda text: float.fromhex(typed(text, str, "a float")),
            "complex": lambda parts: complex(*(float.fromhex(typed(p, str, "a complex number")) for p in parts)),
            "ellipsis": lambda _: ...,
            "dtype": dtype_named,
            "device": device_named,
            "layout": lambda name: _one_of(_LAYOUTS, name, "layout"),
            "memory_format": lambda name: _one_of(_MEMORY_FORMATS, name, "memory format"),
            "size": lambda items: torch.Size(self._items(items)),
            "slice": lambda items: slice(*self._items(items)),
            "range": lambda items: range(*self._items(items)),
            "tuple": lambda items: tuple(self._items(items)),
            "dict": self._dict,
        }

    def value(self, record: Any, where: str) -> Any:
        """The value of a record. Raises ArchiveError for an invalid record."""
        if record is None or isinstance(record, (bool, int, str)):
            return record
        if isinstance(record, list):
            return self._items(record)
        if isinstance(record, dict) and "sym" in record:
            return self._symbols.symbolic(record, where)
        if isinstance(record, dict) and len(record) == 1:
            tag, content = next(iter(record.items()))
            read = self._special.get(tag) or self._tags.get(tag)
            if read is not None:
                return read(content)
        raise ArchiveError(
            seen=f"{where} is {repr(record)[:80]}",
            expected=f"a value: null, a bool, int, string, array, or one of the tags {sorted({*self._tags, *self._special})}",
        )

    def _items(self, records: Any) -> list[Any]:
        return [self.value(record, "an element") for record in typed(records, list, "a list")]

    def _dict(self, records: Any) -> dict[Any, Any]:
        pairs = [self._items(pair) for pair in typed(records, list, "a dict")]
        if any(len(pair) != 2 for pair in pairs):
            raise ArchiveError(seen="a dict with an entry that is no pair", expected="[key, value]")
        return dict(pairs)


def _one_of(known: Mapping[str, Any], name: Any, what: str) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ArchiveError(
            seen=f"the {what} {name!r}", expected=f"one of {sorted(known)}", do="use the version of torch that saved it"
        )
    return known[name]


def dtype_named(name: Any) -> torch.dtype:
    """The dtype of this name. Raises ArchiveError if this torch has none."""
    return _one_of(_DTYPES, name, "dtype")


def device_named(name: Any) -> torch.device:
    """The device of this name. Raises ArchiveError for other text."""
    try:
        return torch.device(typed(name, str, "a device"))
    except RuntimeError as error:
        raise ArchiveError(seen=f"the device {name!r}", expected="a device as torch.device takes it") from error
