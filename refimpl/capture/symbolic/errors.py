"""Exceptions that the segment raises and handles itself.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable exceptions, symbolic_convert.py exception_handler
Differs: an exception has no traceback here. Where it leaves the segment, or a graph break finds it under way, the segment ends
before the instruction that raised it, and CPython raises it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.machine import DEPTH_LIMIT
from refimpl.capture.interpreter.signals import Enter, Signal
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import in_mro, is_a
from refimpl.capture.symbolic.raising import UserRaise, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    ErrorValue,
    NativeMethodValue,
    ObjectValue,
    SequenceValue,
    TracebackValue,
    Value,
)

# Their constructors look at more than the arguments, or make an object of another class.
_GROUPS: tuple[type, ...] = (builtins.BaseExceptionGroup,) if sys.version_info >= (3, 11) else ()
_OWN_CONSTRUCTION = (OSError, ImportError, SyntaxError, UnicodeError, *_GROUPS)
_METHODS = frozenset(["__init__", "with_traceback", "__str__"])


def native_base(class_: type) -> type:
    """The builtin exception that a class derives from."""
    return next(base for base in class_.__mro__ if base.__module__ == "builtins")


def is_plain_error(class_: type) -> bool:
    """Whether an instance is made of its arguments alone, by `__init__`."""
    return (
        issubclass(class_, BaseException)
        and not issubclass(class_, _OWN_CONSTRUCTION)
        and type(class_) is type
        and type(in_mro(class_, "__new__")) is BuiltinFunctionType
        and in_mro(class_, "__new__") is in_mro(native_base(class_), "__new__")
        and class_.__getattribute__ is BaseException.__getattribute__
    )


class SymbolicErrors(SymbolicBase):
    """`raise`, `except`, and what is asked of exceptions."""

    # ------------------------------------------------------------------------------------------------------------ making

    def make_error(self, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A call of a class of exceptions."""
        if not is_plain_error(class_):
            raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
        made = ErrorValue(class_, list(args))
        init = in_mro(class_, "__init__")
        if isinstance(init, FunctionType):
            function = self.state.wrap(init, AttributeSource(KeptSource(class_, class_.__qualname__), "__init__"))
            given = [made, function, SequenceValue(tuple, list(args)), self.named(kwargs)]
            return self.enter_function(ObjectValue(polyfills.initialised), given, {})
        if kwargs:
            raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
        return made

    def attribute_of_error(self, value: ErrorValue, name: str) -> Any:
        """`error.name` where that is no matter of every object; None otherwise."""
        if name in _METHODS and not isinstance(in_mro(value.class_, name), FunctionType):
            return NativeMethodValue(value, name)
        if name == "args" and value.args is not None:
            return SequenceValue(tuple, list(value.args))
        if name == "value" and issubclass(value.class_, StopIteration) and value.args is not None:
            return value.args[0] if value.args else ConstantValue(None)
        if name == "__cause__":
            return ConstantValue(None) if value.cause is None else value.cause
        if name in ("args", "value", "name", "obj", "code", "__dict__", "add_note") or name.startswith("__"):
            unsupported(f"attribute {name}", value)
        return None

    def method_of_error(self, value: ErrorValue, name: str, args: list[Any]) -> Value:
        """A method that its builtin class has."""
        match name:
            case "__init__":
                value.args = list(args)
                return ConstantValue(None)
            case "with_traceback" if self.is_none(args[0]) or isinstance(self.state.see(args[0]), TracebackValue):
                return value
            case "__str__" if not args:
                return self.text_of_error(value)
            case _:
                unsupported(f"method {name}", value)

    def text_of_error(self, value: ErrorValue) -> Value:
        """`str(error)`, of its arguments."""
        if isinstance(in_mro(value.class_, "__str__"), FunctionType) or value.args is None:
            unsupported("str()", value)
        plain = [self.constant_of(arg, "str()") for arg in value.args]
        return ConstantValue(str(native_base(value.class_)(*plain)))

    # ----------------------------------------------------------------------------------------------------------- raising

    def user_exception(self, raised: BaseException) -> Any:
        if type(raised) is UserRaise:
            return raised.error
        raise raised

    def under(self, handled: Any, advance: Callable[[FrameState], Signal], frame: FrameState) -> Signal:
        return advance(frame)

    def add_traceback(self, error: Any, frame: FrameState) -> None:
        """It has none."""

    def throw(self, error: Any) -> NoReturn:
        raise UserRaise(error)

    def leave(self, error: Any) -> NoReturn:
        raise GraphBreak("exception_leaves", what=error.kind).restarting_at(error.raised_at)

    def raise_(self, exception: Any, cause: Any, has_cause: bool) -> None:
        made = self.state.see(exception)
        if isinstance(made, ObjectValue) and is_a(made.object, type):
            made = self.make_error(made.object, [], {}) if issubclass(made.object, BaseException) else made
        if not isinstance(made, ErrorValue):
            raise GraphBreak("unsupported_operation", what="raise", kind="an exception made elsewhere")
        if has_cause:
            made.cause = self._cause(cause)
        raise UserRaise(made)

    def _cause(self, cause: Any) -> Value:
        """What `__cause__` is after `raise error from cause`."""
        seen = self.state.see(cause)
        if isinstance(seen, ObjectValue) and is_a(seen.object, type) and issubclass(seen.object, BaseException):
            seen = self.make_error(seen.object, [], {})
        if not isinstance(seen, ErrorValue) and not self.is_none(seen):
            raise GraphBreak("unsupported_operation", what="raise", kind="a cause made elsewhere")
        return seen

    def nothing_to_reraise(self) -> Any:
        unsupported("raise", ConstantValue(None))

    def too_deep(self) -> NoReturn:
        raise GraphBreak("too_deep", what=DEPTH_LIMIT)

    def leave_generator(self, error: Any) -> Any:
        if not issubclass(error.class_, StopIteration):
            return error
        replacement = ErrorValue(RuntimeError, [ConstantValue("generator raised StopIteration")])
        replacement.raised_at, replacement.cause = error.raised_at, error
        return replacement

    # ---------------------------------------------------------------------------------------------------------- handling

    def matches(self, error: Any, kinds: Any) -> bool:
        return any(kind in error.class_.__mro__ for kind in self._kinds(kinds))

    def _kinds(self, kinds: Any) -> list[type]:
        kinds = self.state.see(kinds)
        if isinstance(kinds, SequenceValue) and kinds.class_ is tuple:
            return [class_ for item in kinds.items for class_ in self._kinds(item)]
        if isinstance(kinds, ObjectValue) and is_a(kinds.object, type) and issubclass(kinds.object, BaseException):
            return [kinds.object]
        unsupported("except", kinds)

    def split_group(self, error: Any, kinds: Any) -> tuple[Any, Any]:
        unsupported("except*", error)

    def regroup(self, original: Any, errors: Any) -> Any:
        unsupported("except*", original)

    def stop_value(self, error: Any) -> tuple[bool, Any]:
        if not issubclass(error.class_, StopIteration):
            return False, None
        if error.args is None:
            unsupported("attribute value", error)
        return True, error.args[0] if error.args else ConstantValue(None)

    def exit_context(self, frame: FrameState, exit_: Any, error: Any) -> Any:
        if error.raised_at is None:
            unsupported("with", error)
        return self.call(frame, exit_, [ObjectValue(error.class_), error, TracebackValue(error)], {})

    # -------------------------------------------------------------------------------------------------------- generators

    def throw_into(self, generator: Any, args: list[Any]) -> Any:
        """`generator.throw(error)`."""
        frame = generator.frame
        error = self.state.see(args[1] if len(args) > 1 and not self.is_none(args[1]) else args[0])
        if isinstance(error, ObjectValue) and is_a(error.object, type) and issubclass(error.object, BaseException):
            error = self.make_error(error.object, [], {})
        if not isinstance(error, ErrorValue) or len(args) > 3 or frame.is_running:
            unsupported("method throw", generator)
        if frame.is_done:
            raise UserRaise(error)
        if frame.is_started:
            if frame.current.arg:  # it delegates to another
                unsupported("method throw", generator)
            frame.stack.append(ConstantValue(None))  # the place of what would have been sent
        return Enter(frame, thrown=error)
