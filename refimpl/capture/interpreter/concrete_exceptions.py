"""Exceptions in the concrete domain, with the contexts and tracebacks that CPython would give them."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from refimpl.capture.interpreter import native_helpers
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Signal
from refimpl.capture.interpreter.tracebacks import with_entry, without_interpreter

_EXCEPTION_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # exists from 3.11 on


class ConcreteExceptions(Domain):
    """Raising and handling real exceptions."""

    def user_exception(self, raised: BaseException) -> Any:
        raised.__traceback__ = without_interpreter(raised.__traceback__)
        return raised

    def under(self, handled: Any, advance: Callable[[FrameState], Signal], frame: FrameState) -> Signal:
        """Runs the frame within a real `except` block, so that CPython sets contexts and `sys.exc_info()` is right."""
        if handled is None or handled is sys.exc_info()[1]:
            return advance(frame)
        traceback, contexts = handled.__traceback__, _contexts(handled)
        try:
            raise handled
        except BaseException:
            handled.__traceback__ = traceback
            _restore(contexts)
            return advance(frame)

    def add_traceback(self, error: Any, frame: FrameState) -> None:
        error.__traceback__ = with_entry(error.__traceback__, frame)

    def leave_generator(self, error: Any) -> Any:
        if not isinstance(error, StopIteration):
            return error
        replacement = RuntimeError("generator raised StopIteration")
        replacement.__cause__ = replacement.__context__ = error
        return replacement

    def throw(self, error: Any, *, is_handling: bool) -> NoReturn:
        """Raises an exception that `generator.throw` passes on. As in CPython, only what the generator itself handles becomes its
        context. That of GeneratorExit would keep what it refers to alive longer than `close` does.
        """
        try:
            if not is_handling or isinstance(error, GeneratorExit):
                _raise_as_it_is(error)
            raise error
        finally:
            del error  # its traceback keeps this frame alive

    def leave(self, error: Any) -> NoReturn:
        _raise_as_it_is(error)

    def raise_(self, exception: Any, cause: Any, has_cause: bool) -> None:
        if has_cause:
            native_helpers.raising_from(exception, cause)
        else:
            native_helpers.raising(exception)

    def nothing_to_reraise(self) -> Any:
        around = sys.exc_info()[1]
        return (True, RuntimeError("No active exception to reraise")) if around is None else (False, around)

    def too_deep(self) -> NoReturn:
        raise RecursionError("maximum recursion depth exceeded")

    def matches(self, error: Any, kinds: Any) -> bool:
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError("catching classes that do not inherit from BaseException is not allowed")
        return _matches(error, kinds)

    def split_group(self, error: Any, kinds: Any) -> tuple[Any, Any]:
        group = _EXCEPTION_GROUP
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError("catching classes that do not inherit from BaseException is not allowed")
            if issubclass(kind, group):
                raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
        if _matches(error, kinds):
            if isinstance(error, group):
                return None, error
            wrapped = _EXCEPTION_GROUP("", (error,))
            wrapped.__traceback__ = error.__traceback__
            return None, wrapped
        if not isinstance(error, group):
            return error, None
        matching, rest = error.split(kinds)
        return rest, matching

    def regroup(self, original: Any, errors: Any) -> Any:
        """The exception after `except*` blocks: a group of those that the blocks raised, and of those raised again or never
        matched.
        """
        left = [error for error in errors if error is not None]
        if not left:
            return None
        if not isinstance(original, _EXCEPTION_GROUP):
            return left[0]
        raised, reraised = [], []
        for error in left:
            (reraised if _is_part(error, original) else raised).append(error)
        rest = _projection(original, reraised) if reraised else None
        if not raised:
            return rest
        if rest is not None:
            raised.append(rest)
        return raised[0] if len(raised) == 1 else _EXCEPTION_GROUP("", raised)

    def stop_value(self, error: Any) -> tuple[bool, Any]:
        return (True, error.value) if isinstance(error, StopIteration) else (False, None)

    def enter_context(self, frame: FrameState, manager: Any) -> tuple[Any, Any]:
        enter = _special(manager, "__enter__")
        exit_ = None if enter is None else _special(manager, "__exit__")
        if enter is None or exit_ is None:
            native_helpers.entering(manager)
        return exit_, self.call(frame, enter, [], {})

    def exit_context(self, frame: FrameState, exit_: Any, error: Any) -> Any:
        return self.call(frame, exit_, [type(error), error, error.__traceback__], {})


def _raise_as_it_is(error: Any) -> NoReturn:
    """Raises an exception that keeps its context."""
    contexts = _contexts(error)
    try:
        raise error
    finally:
        _restore(contexts)
        del error, contexts  # its traceback keeps this frame alive


def _contexts(error: Any) -> list[tuple[Any, Any]]:
    """The contexts that raising the exception here would change: its own, and those of the exceptions being handled (to break
    cycles).
    """
    found: dict[int, tuple[Any, Any]] = {id(error): (error, error.__context__)}
    around = sys.exc_info()[1]
    while around is not None and id(around) not in found:
        found[id(around)] = around, around.__context__
        around = around.__context__
    return list(found.values())


def _restore(contexts: list[tuple[Any, Any]]) -> None:
    for error, context in contexts:
        error.__context__ = context


def _matches(error: Any, kinds: Any) -> bool:
    """Matches by inheritance only: `except` does not call `__subclasscheck__`."""
    classes = type(error).__mro__
    return any(kind in classes for kind in kinds) if isinstance(kinds, tuple) else kinds in classes


def _special(value: Any, name: str) -> Any:
    """A bound special method, looked up on the class; None if there is none."""
    for kind in type(value).__mro__:
        if name in kind.__dict__:
            found = kind.__dict__[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, value, type(value))
    return None


def _leaves(error: Any) -> list[Any]:
    if isinstance(error, _EXCEPTION_GROUP):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def _is_part(error: Any, original: Any) -> bool:
    """Whether the exception came from splitting the group, and not from a `raise` of a new one."""
    return (
        getattr(error, "__notes__", None) is getattr(original, "__notes__", None)
        and error.__cause__ is original.__cause__
        and error.__context__ is original.__context__
        and error.__traceback__ is original.__traceback__
    )


def _projection(original: Any, parts: list[Any]) -> Any:
    """The part of the group that has the leaves of these parts, with the group's structure."""
    kept = {id(leaf) for part in parts for leaf in _leaves(part)}
    return original.split(lambda leaf: id(leaf) in kept and not isinstance(leaf, _EXCEPTION_GROUP))[0]
