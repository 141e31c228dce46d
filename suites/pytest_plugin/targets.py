"""Targets: functions and classes of modules whose calls are judged. While they are watched, a function sees each call first.

A function is replaced in every loaded module that holds it, since `from einops import rearrange` copies the name. A class of
modules is watched by its `__call__`, which the modules of its subclasses have too.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from oracle.errors import UsageError

See = Callable[["Call"], Any]  # judges a call, makes it, and returns what it returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the program is about to make."""

    of: str  # the name of the target: of the function, or of the module's class
    target: Callable[..., Any]  # the function, or the module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    make: Callable[[], Any]


def find_target(given: Any) -> Any:
    """The function, or class of modules, that is given itself or by its dotted name. Raises UsageError for anything else."""
    found = _named(given) if isinstance(given, str) else given
    if isinstance(found, type):
        if not issubclass(found, torch.nn.Module):
            raise _not_a_target(given, f"the class {found.__qualname__}, which is no torch.nn.Module")
    elif isinstance(found, torch.nn.Module) or not callable(found):
        raise _not_a_target(given, f"a value of type {type(found).__qualname__}")
    return found


def _named(path: str) -> Any:
    words = path.split(".")
    for split in range(len(words) - 1, 0, -1):
        name = ".".join(words[:split])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue  # a shorter path may be the module
            raise
        try:
            return functools.reduce(getattr, words[split:], found)
        except AttributeError:
            raise _not_a_target(path, f"nothing: {name} has no {'.'.join(words[split:])}") from None
    raise _not_a_target(path, "nothing: there is no such module")


def name_of(target: Any) -> str:
    """The dotted name of a function, or of the class of a module."""
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"


def _not_a_target(given: Any, what: str) -> UsageError:
    return UsageError(
        seen=f"the target {given!r}, which is {what}",
        expected="a function, or a subclass of torch.nn.Module: package.module.name",
        do="write torch.nn.Module for the calls of all modules",
    )


class Watched:
    """Targets whose calls go to `see`, between `begin` and `end`. Mutable.

    `arguments` are the test's: a target among them, from `pytest.mark.parametrize`, is replaced too.
    """

    def __init__(self, targets: Sequence[Any], see: See, *, arguments: dict[str, Any]) -> None:
        self._see = see
        self._classes = [target for target in targets if isinstance(target, type)]
        functions = [target for target in targets if not isinstance(target, type)]
        seers = {id(function): _seen_function(function, see) for function in functions}
        places = _places(functions, [arguments, *_namespaces()]) if functions else []
        self._functions = [(space, key, function, seers[id(function)]) for space, key, function in places]
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._undo = [_watch_class(each, self._see) for each in self._classes]
        for space, key, function, called in self._functions:
            if space.get(key) is function:
                space[key] = called

    def end(self) -> None:
        for space, key, function, called in self._functions:
            if space.get(key) is called:  # else the test has replaced it, by a mock for example
                space[key] = function
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which calls go to the targets themselves, and nothing is watched."""
        self.end()
        try:
            yield
        finally:
            self.begin()


def _watch_class(watched_class: type, see: See) -> Callable[[], None]:
    original = watched_class.__call__
    own = watched_class.__dict__.get("__call__")

    @functools.wraps(original)
    def called(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        return see(
            Call(
                of=name_of(self),
                target=self,
                args=args,
                kwargs=kwargs,
                make=lambda: original(self, *args, **kwargs),
            )
        )

    setattr(watched_class, "__call__", called)

    def undo() -> None:
        if own is None:
            delattr(watched_class, "__call__")
        else:
            setattr(watched_class, "__call__", own)

    return undo


def _seen_function(function: Callable[..., Any], see: See) -> Callable[..., Any]:
    """A replacement for a function while its calls are watched."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return see(
            Call(
                of=name_of(function),
                target=function,
                args=args,
                kwargs=kwargs,
                make=lambda: function(*args, **kwargs),
            )
        )

    return called


def _namespaces() -> list[dict[str, Any]]:
    modules = list(sys.modules.values())
    return [vars(module) for module in modules if isinstance(getattr(module, "__dict__", None), dict)]


def _places(functions: Sequence[Any], spaces: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str, Any]]:
    """The names under which the namespaces hold the functions."""
    wanted = {id(function) for function in functions}
    return [(space, key, value) for space in spaces for key, value in list(space.items()) if id(value) in wanted]
