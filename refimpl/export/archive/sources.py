"""Names of what nodes stand for in the program (`source_fn_stack`): functions of torch and Python, methods, operators.

Counterpart: torch/_export/serde/serialize.py serialize_metadata, deserialize_metadata
Differs: a function is looked up in a closed list of modules; upstream imports what the file names.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import torch
from torch import nn

from refimpl._torch import HigherOrderOperator, OpOverload, OpOverloadPacket
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.archive.operators import name_of, named, packet_named

# Where functions are looked up, by the name in the file. The first that has the function is written.
_HOLDERS: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": nn.functional,
    "torch.nn": nn,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.Tensor": torch.Tensor,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}


def sources_record(stack: Any) -> list[list[Any]] | None:
    """The record of a `source_fn_stack`; None for one with a function of the user's, which another process may not have."""
    found: list[list[Any]] = []
    for name, target in stack:
        record = _record(target)
        if record is None:
            return None
        found.append([str(name), record])
    return found


def _record(target: Any) -> dict[str, str] | None:
    if isinstance(target, str):
        return {"method": target}
    if isinstance(target, OpOverloadPacket):
        return {"packet": str(target)}
    if isinstance(target, (OpOverload, HigherOrderOperator)):
        return {"operator": name_of(target)}
    name = getattr(target, "__name__", "")
    for place, holder in _HOLDERS.items():
        if vars(holder).get(name) is target:
            return {"in": place, "function": name}
    return None


def to_sources(record: Any, where: str) -> list[tuple[str, Any]]:
    """The `source_fn_stack` of a record. Raises ArchiveError for another record, and for what this process does not have."""
    if not isinstance(record, list):
        raise ArchiveError(seen=f"{where} is {record!r}", expected="a list of sources")
    return [_source(each, where) for each in record]


def _source(record: Any, where: str) -> tuple[str, Any]:
    match record:
        case [str() as name, {"method": str() as method}]:
            return name, method
        case [str() as name, {"packet": str() as packet}]:
            return name, packet_named(packet)
        case [str() as name, {"operator": str() as target}]:
            return name, named(target)
        case [str() as name, {"in": str() as place, "function": str() as function}] if (
            place in _HOLDERS and function in vars(_HOLDERS[place])
        ):
            return name, vars(_HOLDERS[place])[function]
        case _:
            raise ArchiveError(
                seen=f"{where} has the source {record!r}",
                expected=f"a method, an operator, or a function of {[*_HOLDERS]}",
            )
