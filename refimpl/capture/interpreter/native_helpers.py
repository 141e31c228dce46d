"""Functions that run one instruction of CPython each, for its exact checks and messages in every version.

They are made once for each argument of the instruction (a count, a name). Their globals are this module's, so that tracebacks
leave them out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def _made(source: str, name: str = "made", **given: Any) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"__name__": __name__, **given}
    exec(source, namespace)
    return namespace[name]


@functools.cache
def unpacking(before: int, after: int | None) -> Callable[[Any], list[Any]]:
    """A function that takes an iterable and returns the list that `a, b = iterable` or `a, *b, c = iterable` assigns."""
    names = [f"v{index}" for index in range(before)]
    if after is not None:
        names += ["*rest", *(f"w{index}" for index in range(after))]
    targets = ", ".join(names) + "," if names else "[]"
    results = ", ".join(name.lstrip("*") for name in names)
    return _made(f"def made(value):\n    {targets} = value\n    return [{results}]")


@functools.cache
def class_pattern(positional: int, names: tuple[str, ...]) -> Callable[[Any, Any], tuple[Any, ...] | None]:
    """A function that takes a subject and a class and returns what the pattern `kind(v0, ..., name=w0)` binds; None for no
    match.
    """
    values = [f"v{index}" for index in range(positional)]
    keywords = [f"w{index}" for index in range(len(names))]
    pattern = ", ".join([*values, *(f"{name}={value}" for name, value in zip(names, keywords, strict=True))])
    results = "".join(f"{value}, " for value in [*values, *keywords])
    # The class is a parameter: a class pattern accepts any name.
    return _made(
        f"def made(subject, kind):\n    match subject:\n        case kind({pattern}):\n            return ({results})"
    )


@functools.cache
def _importing(name: str) -> Callable[..., Any]:
    return _made(f"def made():\n    from x import {name} as found\n    return found")


def import_from(module: Any, name: str) -> Any:
    """`from module import name`, for an imported module."""
    made = _importing(name)
    builtins = {"__import__": lambda *_: module}
    return FunctionType(made.__code__, {"__builtins__": builtins, "__name__": __name__})()


def import_star(module: Any, names: Any) -> None:
    """`from module import *` into a mapping."""
    exec("from x import *", {"__builtins__": {"__import__": lambda *_: module}, "__name__": __name__}, names)


@functools.cache
def type_variable(name: str, kind: str, *, is_bounded: bool) -> Callable[[Any], Any]:
    """A function that makes the type variable `name` from the function that computes its bound, as a declaration does.

    Python 3.12 and later.
    """
    bound = ": evaluate()" if is_bounded else ""
    stars = {"typevar": "", "typevartuple": "*", "paramspec": "**"}[kind]
    source = f"def made(evaluate):\n    def f[{stars}{name}{bound}](): pass\n    return f.__type_params__[0]"
    return _made(source)


def raising(exception: Any) -> None:
    try:
        raise exception
    finally:
        del exception  # its traceback keeps this frame alive


def raising_from(exception: Any, cause: Any) -> None:
    try:
        raise exception from cause
    finally:
        del exception, cause


def entering(manager: Any) -> None:
    """Raises the error of `with` for an object that is no context manager."""
    with manager:
        pass


def spread(iterable: Any) -> list[Any]:
    return [*iterable]


def spread_mapping(mapping: Any) -> dict[Any, Any]:
    return {**mapping}


def call_with_both(function: Any, first: Any, second: Any) -> None:
    """Raises the error of a call with a keyword given twice, or with `**` of an object that is no mapping."""
    function(**first, **second)


def call_with_mapping(function: Any, mapping: Any) -> None:
    function(**mapping)
