"""The exception table of CPython 3.11 and later: which handler covers which instructions.

Counterpart: dis._parse_exception_table
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class ProtectedRange:
    """Exceptions of instructions that start in [start, end) go to `target`, with the stack cut to `depth` slots.

    With `keeps_position`, the position where the exception was raised (`lasti`) is pushed below the exception.
    """

    start: int
    end: int
    target: int
    depth: int
    keeps_position: bool


def protected_ranges(code: CodeType) -> list[ProtectedRange]:
    """The entries in order; an empty list for a code object without any."""
    entries: list[ProtectedRange] = []
    data: Iterator[int] = iter(getattr(code, "co_exceptiontable", b""))
    for first in data:
        start = _number(first, data) * 2
        end = start + _number(next(data), data) * 2
        target = _number(next(data), data) * 2
        depth = _number(next(data), data)
        entries.append(ProtectedRange(start, end, target, depth >> 1, bool(depth & 1)))
    return entries


def _number(first: int, data: Iterator[int]) -> int:
    """A number of six bits a byte, most significant first. Bit 6 says that another byte follows, bit 7 that an entry begins."""
    value = first & 63
    while first & 64:
        first = next(data)
        value = value << 6 | first & 63
    return value
