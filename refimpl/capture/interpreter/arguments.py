"""Puts the arguments of a call into a frame's slots, by CPython's rules.

Counterpart: torch/_dynamo/variables/functions.py bind_args_cached, inspect.Signature.bind
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from refimpl.capture.bytecode.instructions import NormalizedCode
from refimpl.capture.interpreter.frame import UNBOUND


def bind(
    code: NormalizedCode,
    defaults: Sequence[Any],
    keyword_defaults: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]] | None:
    """The slots, and the surplus arguments for *args and **kwargs, which the caller wraps; None if the arguments do not fit.

    The slots of *args and **kwargs stay unbound: `surplus_slots` says where they are.
    """
    of = code.code
    count, positional_only, keyword_only = of.co_argcount, of.co_posonlyargcount, of.co_kwonlyargcount
    slots: list[Any] = [UNBOUND] * len(code.slots)
    given = min(len(args), count)
    slots[:given] = args[:given]
    rest = tuple(args[count:])
    if rest and not of.co_flags & inspect.CO_VARARGS:
        return None
    names = code.slots[: count + keyword_only]
    surplus: dict[str, Any] = {}
    for name, value in kwargs.items():
        index = _index(names, name, positional_only)
        if index is None:
            if not of.co_flags & inspect.CO_VARKEYWORDS:
                return None
            surplus[name] = value
        elif slots[index] is not UNBOUND:
            return None
        else:
            slots[index] = value
    first_default = count - len(defaults)
    for index in range(given, count):
        if slots[index] is UNBOUND:
            if index < first_default:
                return None
            slots[index] = defaults[index - first_default]
    for index in range(count, count + keyword_only):
        if slots[index] is UNBOUND:
            if names[index] not in keyword_defaults:
                return None
            slots[index] = keyword_defaults[names[index]]
    return slots, rest, surplus


def surplus_slots(code: NormalizedCode) -> tuple[int | None, int | None]:
    """The slots of *args and **kwargs, if the function has them."""
    of = code.code
    after = of.co_argcount + of.co_kwonlyargcount
    has_args, has_kwargs = bool(of.co_flags & inspect.CO_VARARGS), bool(of.co_flags & inspect.CO_VARKEYWORDS)
    return after if has_args else None, after + has_args if has_kwargs else None


def _index(names: Sequence[str], name: str, positional_only: int) -> int | None:
    try:
        return names.index(name, positional_only)
    except ValueError:
        return None
