"""What a test file holds in the place of something that must not be used, or is not there: it raises when a test uses it.

Before the first test runs, while a file is being loaded, using it gives another one of the same name instead: a decorator
or a module-level call must not cost the whole file, only the tests that depend on it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


class EntryPointUsed(Exception):
    """A test used a substituted entry point in the pass in which all of them raise.

    A plain Exception of its own type, so that a test which expects a RuntimeError does not take it for one.
    """


class MissingName(Exception):
    """A test used a name that the installed torch does not have, and that `shims.py` knows no other place of."""


class Phase:
    """Whether tests are running, or files are still being loaded."""

    is_testing = False


class Unusable:
    """Raises when it is called, entered, or asked for an attribute in a test."""

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
        return (object,)  # a class derived from it at load time: its tests fail where they use what it should inherit

    def __repr__(self) -> str:
        return f"<unusable {self._conformance_name}>"


def _failing(function: types.FunctionType, make_error: Callable[[], Exception]) -> Callable[..., Any]:
    """For a function that was decorated: a function still, as unittest and the harness look for attributes of tests."""

    @functools.wraps(function)
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise make_error()

    return fail


def missing(name: str) -> Unusable:
    """For a name that is not there."""
    return Unusable(name, lambda: MissingName(f"{name} is not in the installed torch, and has no known other place"))


def raising(name: str, original: object) -> object:
    """For an entry point. Of a class it is a subclass, so that `isinstance` and `issubclass` still mean something."""

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
