"""Counts the bytes that each kernel of a compiled graph moves, and the fewest that one kernel could.

A kernel's loads of an element count once, since caches serve the others. Gaps between elements do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import sympy

from refimpl.codegen.accesses import accesses
from refimpl.codegen.indices import ZERO, product
from refimpl.codegen.loop_ir import Buffer, buffers_made
from refimpl.codegen.schedule import Scheduled, ScheduledKernel
from refimpl.codegen.sizes import SizeFacts


@dataclass(frozen=True)
class Traffic:
    """Bytes that one kernel or extern call reads and writes."""

    name: str
    read: sympy.Expr
    written: sympy.Expr

    @property
    def moved(self) -> sympy.Expr:
        return self.read + self.written


@dataclass(frozen=True)
class Movement:
    """The memory traffic of a compiled graph. `outside`: its inputs and constants; `needed`: its results."""

    entries: tuple[Scheduled, ...]
    names: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    facts: SizeFacts
    outside: frozenset[str]
    needed: Set[str]

    def parts(self) -> list[Traffic]:
        """The traffic of each kernel and each call, in order."""
        return [self._part(name, entry) for name, entry in zip(self.names, self.entries, strict=True)]

    def least(self) -> Traffic:
        """The traffic of one kernel that would do everything: each used input once, each output once."""
        used = frozenset[str]().union(*(reads_of(entry) for entry in self.entries))
        return Traffic("all", self._bytes(self.outside & used), self._bytes(self.needed - self.outside))

    def _part(self, name: str, entry: Scheduled) -> Traffic:
        if not isinstance(entry, ScheduledKernel):
            return Traffic(name, self._bytes(entry.reads), self._bytes({made.name for made in buffers_made(entry)}))
        found = accesses(entry.group, entry.stored)
        by_buffer: dict[str, sympy.Expr] = {}
        for access in found:
            if not access.is_store:
                by_buffer[access.buffer] = by_buffer.get(access.buffer, ZERO) + access.bytes
        reads = [min(size, self._bytes({name}), key=self.facts.guess) for name, size in by_buffer.items()]
        return Traffic(name, sympy.Add(*reads), sympy.Add(*(access.bytes for access in found if access.is_store)))

    def _bytes(self, names: Set[str]) -> sympy.Expr:
        """Bytes of all elements of the buffers."""
        found = (self.buffers[name] for name in sorted(names))
        return sum((product(buffer.shape) * buffer.dtype.itemsize for buffer in found), ZERO)


def reads_of(entry: Scheduled) -> frozenset[str]:
    """Names of the buffers that an entry reads."""
    return frozenset(entry.group.reads()) if isinstance(entry, ScheduledKernel) else frozenset(entry.reads)
