"""Objects in place of names that must not be used or do not exist: they raise when a test uses them.

While a file is being loaded, using one returns another one instead: a decorator or a module-level call should not fail the whole
file, only the tests that depend on it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


class EntryPointUsed(Exception):
    """A test used a substituted entry point in the pass in which all of them raise.

    An Exception subclass of its own, so that a test that expects a RuntimeError does not catch it.
    """


class MissingName(Exception):
    """A test used a name that the installed torch does not have, and that has no row in `shims.py`."""


class Phase:
    """Whether tests are running, or files are still being loaded."""

    is_testing = False


class Unusable:
    """Raises when a test calls it, enters it, or reads an attribute."""

    def __init__(self, name: str, make_error: Callable[[], Exception]) -> None:
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self._conformance_name = name
        self._conformance_error = make_error

    def _used(self, how: str) -> Unusable:
        if Phase.is_testing:
            raise self._conformance_error()
        return Unusable(f"{self._conformance_name}{how}", self._conformance_error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        used = self._used("()")
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return _failing(args[0], self._conformance_error)
        return used

    def __getattr__(self, name: str) -> Unusable:
        if name.startswith("__") and name.endswith("__"):  # probes of inspect, functools, unittest: not a use
            raise AttributeError(name)
        return self._used(f".{name}")

    def __enter__(self) -> Unusable:
        return self._used(".__enter__()")

    def __exit__(self, *error: object) -> None:
        return None

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (object,)  # for a class derived from it at load time: its tests fail when they use an inherited method

    def __repr__(self) -> str:
        return f"<unusable {self._conformance_name}>"


def _failing(function: types.FunctionType, make_error: Callable[[], Exception]) -> Callable[..., Any]:
    """A replacement for a decorated function. It is a function, since unittest and the harness read attributes of tests."""

    @functools.wraps(function)
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise make_error()

    return fail


def missing(name: str) -> Unusable:
    """The replacement for a name that does not exist."""
    return Unusable(name, lambda: MissingName(f"{name} is not in the installed torch, and has no known other place"))


def raising(name: str, original: object) -> object:
    """The replacement for an entry point. For a class it is a subclass, so that `isinstance` and `issubclass` still work."""

    def error() -> Exception:
        return EntryPointUsed(f"{name} was used")

    if not isinstance(original, type):
        return Unusable(name, error)

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise error()

    try:
        return type(original)(original.__name__, (original,), {"__new__": refuse, "__module__": original.__module__})
    except TypeError:  # a final class, such as an enumeration with members
        return Unusable(name, error)
