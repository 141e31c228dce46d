"""Python that is interpreted in the place of what C does in several steps of which one may be the user's code.

Counterpart: torch/_dynamo/polyfills
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any


def initialised(instance: Any, init: Any, args: Any, kwargs: Any) -> Any:
    """A call of a class, once the object is there."""
    if init(instance, *args, **kwargs) is not None:
        raise TypeError("__init__() should return None")
    return instance


def do_nothing(instance: Any) -> None:
    """`object.__init__`."""


def any_of(iterable: Any) -> bool:
    """`any`."""
    for item in iterable:  # noqa: SIM110 - it stands for what is proposed
        if item:
            return True
    return False


def all_of(iterable: Any) -> bool:
    """`all`."""
    for item in iterable:  # noqa: SIM110 - likewise
        if not item:
            return False
    return True


def total(iterable: Any, start: Any = 0) -> Any:
    """`sum`."""
    for item in iterable:
        start = start + item
    return start


def next_of(iterator: Any) -> Any:
    """`next` of an iterator."""
    for item in iterator:
        return item
    raise StopIteration


def next_or(iterator: Any, default: Any) -> Any:
    """`next` of an iterator, with something to give at its end."""
    for item in iterator:
        return item
    return default


def closed(generator: Any) -> None:
    """`generator.close()` of one that waits."""
    try:
        generator.throw(GeneratorExit)
    except (GeneratorExit, StopIteration):
        return
    raise RuntimeError("generator ignored GeneratorExit")


def has(object_: Any, name: str) -> bool:
    """`hasattr`."""
    try:
        getattr(object_, name)
    except AttributeError:
        return False
    return True


def attribute_or(object_: Any, name: str, default: Any) -> Any:
    """`getattr` with something to give where there is none."""
    try:
        return getattr(object_, name)
    except AttributeError:
        return default


def listed(iterable: Any) -> Any:
    """`[*iterable]`."""
    items = []
    for item in iterable:
        items.append(item)
    return items


def extended(target: Any, iterable: Any) -> None:
    """`target.extend(iterable)`."""
    for item in iterable:
        target.append(item)


def called_with_list(function: Any, iterable: Any, rest: Any, kwargs: Any) -> Any:
    """`function(iterable, *rest, **kwargs)` of a function that reads it to the end first."""
    items = []
    for item in iterable:
        items.append(item)
    return function(items, *rest, **kwargs)


_CODES = frozenset(function.__code__ for function in list(globals().values()) if isinstance(function, FunctionType))


def is_polyfill(code: CodeType) -> bool:
    """Whether a frame is one that the user's program does not have."""
    return code in _CODES
