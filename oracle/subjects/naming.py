"""Names of subjects: a unique name for each callable of the user, and an error for equal names. Does not import torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from oracle.errors import UsageError
from oracle.subjects.spec import SubjectSpec


def name_of_callable(function: Callable[..., Any]) -> str:
    """`module.qualname` of a function or class, of a partial's function, or of an instance's class.

    `pkg.backend.compile_fx`, `__main__.<lambda>`, `tests.test_x.test_y.<locals>.backend`.
    """
    while isinstance(function, (functools.partial, functools.partialmethod)):
        function = function.func
    named: Any = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if isinstance(module, str) else named.__qualname__


def names_of_callables(functions: Iterable[Callable[..., Any]]) -> list[str]:
    """A name for each, in the order given: of several equal names the second becomes `name#2`, the third `name#3`."""
    counts: dict[str, int] = {}
    names: list[str] = []
    for function in functions:
        name = name_of_callable(function)
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return names


def check_distinct_names(names: Sequence[str]) -> None:
    """Raises UsageError for a name that occurs twice, since results are stored by name."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UsageError(
            seen=f"subject {twice[0]!r} {names.count(twice[0])} times",
            expected="subjects of different names: results are kept by name",
            do="leave one out, or give one of them another name",
        )


def check_distinct_specs(specs: Sequence[SubjectSpec]) -> None:
    """Raises UsageError for two names of the same subject, such as the same options in another order."""
    for number, spec in enumerate(specs):
        for other in specs[:number]:
            if replace(spec, name=other.name) == other and spec.name != other.name:
                raise UsageError(
                    seen=f"subjects {other.name!r} and {spec.name!r}, which are the same",
                    expected="each subject once",
                    do="leave one out",
                )
