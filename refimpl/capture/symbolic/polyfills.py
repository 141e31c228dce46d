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


_CODES = frozenset(function.__code__ for function in list(globals().values()) if isinstance(function, FunctionType))


def is_polyfill(code: CodeType) -> bool:
    """Whether a frame is one that the user's program does not have."""
    return code in _CODES
