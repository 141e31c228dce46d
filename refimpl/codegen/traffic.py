"""How many bytes each kernel of a compiled graph moves, and how few it could be.

An element counts once for a kernel that reads it, however often it does: what a second look finds in a cache is not counted, nor
what lies between two elements in memory.
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
    """Bytes of one kernel, or of one call of an operator's own."""

    name: str
    read: sympy.Expr
    written: sympy.Expr

    @property
    def moved(self) -> sympy.Expr:
        return self.read + self.written


@dataclass(frozen=True)
class Movement:
    """What a compiled graph moves. `outside`: buffers that it is given; `needed`: those that it gives."""

    entries: tuple[Scheduled, ...]
    names: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    facts: SizeFacts
    outside: frozenset[str]
    needed: Set[str]

    def parts(self) -> list[Traffic]:
        """Of each kernel and each call, in order."""
        return [self._part(name, entry) for name, entry in zip(self.names, self.entries, strict=True)]

    def least(self) -> Traffic:
        """Of one kernel that would do everything: every input that is used, and every output."""
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
        """Of all elements of buffers."""
        found = (self.buffers[name] for name in sorted(names))
        return sum((product(buffer.shape) * buffer.dtype.itemsize for buffer in found), ZERO)


def reads_of(entry: Scheduled) -> frozenset[str]:
    """Names of the buffers that it reads."""
    return frozenset(entry.group.reads()) if isinstance(entry, ScheduledKernel) else frozenset(entry.reads)
