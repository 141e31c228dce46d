"""Overrides for single captures, chosen by the capture's number: another backend, other settings.

Counterpart: torch/_dynamo/graph_id_filter.py
Differs: each segment has a number of its own; upstream numbers frames, and a segment after a break has its frame's number. A
filter or an item that cannot be read raises; upstream leaves it out with a log message.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from refimpl.backend_registry import Backend, lookup_backend
from refimpl.capture.config import config
from refimpl.errors import BadParameter

_COMPARED = re.compile(r"(>=|<=|>|<)(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_WORDS = {"true": True, "false": False, "none": None}


def backend_override(number: int) -> Backend | None:
    """The backend that `config.debug_backend_override` names for a capture. Raises ValueError for a name that is none."""
    found: dict[str, Backend] = {}
    for selects, name in _rules(config.debug_backend_override):
        try:
            backend = lookup_backend(name)
        except BadParameter as error:
            raise ValueError(
                f"debug_backend_override: '{name}' is not a valid backend\n  expected: one of refimpl.list_backends()"
            ) from error
        if selects(number):
            found[name] = backend
    if len(found) > 1:
        raise ValueError(f"Conflicting backend override for graph {number}: matched {list(found)}")
    return next(iter(found.values()), None)


def settings_override(number: int) -> dict[str, Any]:
    """The settings that `config.debug_dynamo_config_override` gives for a capture. Raises ValueError for an unknown one."""
    found: dict[str, Any] = {}
    for selects, text in _rules(config.debug_dynamo_config_override):
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not hasattr(config, name):
                raise ValueError(
                    f"debug_dynamo_config_override: '{item}' is no setting\n  expected: NAME=VALUE,NAME=VALUE"
                )
            if not selects(number):
                continue
            if found.setdefault(name, _value(value)) != _value(value):
                raise ValueError(f"Conflicting config override for graph {number}: {name} is {found[name]} and {value}")
    return found


@functools.lru_cache(maxsize=8)
def _rules(text: str) -> tuple[tuple[Callable[[int], bool], str], ...]:
    """The rules `FILTER:WHAT;FILTER:WHAT` of a setting."""
    found: list[tuple[Callable[[int], bool], str]] = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        numbers, colon, what = (part.strip() for part in rule.partition(":"))
        if not colon or not numbers or not what:
            raise ValueError(f"an override is {rule!r}\n  expected: NUMBERS:WHAT, such as '0-3:eager'")
        found.append((functools.partial(_selects, _filters(numbers)), what))
    return tuple(found)


def _filters(text: str) -> tuple[Any, ...]:
    """Comparisons and ranges: '>=4', '2', '3-5'."""
    found: list[Any] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if compared := _COMPARED.fullmatch(part):
            found.append((_COMPARISONS[compared[1]], int(compared[2])))
        elif between := _RANGE.fullmatch(part):
            first = int(between[1])
            found.append((operator.contains, range(first, int(between[2] or first) + 1)))
        else:
            raise ValueError(f"the numbers of an override are {part!r}\n  expected: 3, 3-5, >3, >=3, <3 or <=3")
    return tuple(found)


def _selects(filters: tuple[Any, ...], number: int) -> bool:
    return any(number in bound if isinstance(bound, range) else compare(number, bound) for compare, bound in filters)


def _value(text: str) -> Any:
    """A setting's value: a word for True, False or None, a number, else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
