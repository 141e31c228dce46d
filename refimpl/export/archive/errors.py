"""ArchiveError, and readers of JSON fields that raise it.

Counterpart: torch/_export/serde/serialize.py SerializeError
"""

from __future__ import annotations

import keyword
import re
from typing import Any, TypeVar

from refimpl.errors import RefimplError

T = TypeVar("T")

# The generated code of a graph contains names of state, in quotes if they are no identifiers.
_STATE_NAME = re.compile(r"[^\"'\\\x00-\x1f\x7f]+")


class ArchiveError(RefimplError, ValueError):
    """A program cannot be saved, or an archive cannot be loaded."""

    def __init__(
        self, *, seen: str, expected: str, do: str = "save the program again with refimpl.export.save"
    ) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  what to do: {do}")


def typed(value: Any, kind: type[T], where: str) -> T:
    """The value. Raises ArchiveError if it is not of the type; a bool is no int here."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ArchiveError(seen=f"{where} is {_short(value)}", expected=f"a JSON value of type {kind.__name__}")
    return value


def field(record: Any, name: str, kind: type[T], where: str) -> T:
    """A field of a JSON object. Raises ArchiveError if it is missing or of another type."""
    found = typed(record, dict, where)
    if name not in found:
        raise ArchiveError(seen=f"{where} has the fields {sorted(found)}", expected=f"a field {name!r}")
    return typed(found[name], kind, f"{where}.{name}")


def optional(record: Any, name: str, kind: type[T], where: str) -> T | None:
    """A field of a JSON object that may be null or missing."""
    found = typed(record, dict, where)
    return None if found.get(name) is None else typed(found[name], kind, f"{where}.{name}")


def strings(record: Any, name: str, where: str) -> list[str]:
    """A field that is a list of strings."""
    return [typed(each, str, f"{where}.{name}") for each in field(record, name, list, where)]


def identifier(value: Any, where: str) -> str:
    """A name that the generated code of a graph may contain. Raises ArchiveError for other text."""
    text = typed(value, str, where)
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ArchiveError(seen=f"{where} is {_short(text)}", expected="a Python identifier, as names in a graph are")
    return text


def path_of_identifiers(value: Any, where: str) -> str:
    """Identifiers separated by dots."""
    text = typed(value, str, where)
    for part in text.split("."):
        identifier(part, where)
    return text


def state_name(value: Any, where: str) -> str:
    """The full name of a parameter, buffer, constant or module."""
    text = typed(value, str, where)
    if not _STATE_NAME.fullmatch(text):
        raise ArchiveError(
            seen=f"{where} is {_short(text)}", expected="a name without quotes, backslashes and control characters"
        )
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
