"""Sources: Python expressions that read a symbol's value from the inputs of a later call.

Counterpart: torch/_dynamo/source.py Source and its subclasses
Differs: a source is its Python text. Objects of upstream's classes are accepted too, by their `name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """A source such as `L['x'].size()[0]`. `base` is its input (`L['x']`); `dim` the dimension if it is a size."""

    name: str
    base: str = ""
    dim: int | None = None

    def is_ephemeral(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.name


def input_source(name: str) -> Source:
    """The source of an input, from its parameter name or its Python source."""
    text = f"L[{name!r}]" if name.isidentifier() else name
    return Source(text, text)


def as_source(source: Any) -> Source:
    """Convert a name, or an object with a `name` (a string, or a method as in older torch), to a Source."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        return input_source(source)
    if source is None:
        return Source("<unknown>", "<unknown>")
    name = source.name
    text = name if isinstance(name, str) else name()
    return Source(text, text, getattr(source, "idx", None))


def size_source(base: Source, dim: int) -> Source:
    return Source(f"{base.name}.size()[{dim}]", base.name, dim)


def stride_source(base: Source, dim: int) -> Source:
    return Source(f"{base.name}.stride()[{dim}]", base.name)


def storage_offset_source(base: Source) -> Source:
    return Source(f"{base.name}.storage_offset()", base.name)
