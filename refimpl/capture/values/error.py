"""Exceptions that are raised and handled within a segment.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable exceptions
Differs: such an exception has no traceback. If it leaves the segment, or the graph breaks before it is handled, the segment
ends before the instruction that raised it, and CPython raises it.
"""

from __future__ import annotations

import builtins
import sys
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.classes import in_mro
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.instance import InstanceValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

# Exceptions whose constructors do more than store their arguments, or return an object of another class.
_GROUPS: tuple[type, ...] = (builtins.BaseExceptionGroup,) if sys.version_info >= (3, 11) else ()
_OWN_CONSTRUCTION = (OSError, ImportError, SyntaxError, UnicodeError, *_GROUPS)
_METHODS = frozenset(["__init__", "with_traceback", "__str__"])
_NOT_KNOWN = ("args", "value", "name", "obj", "code", "add_note")


class ErrorValue(InstanceValue):
    """An exception made in the segment. `args` is None where they are not known."""

    __slots__ = ("args", "cause", "raised_at")

    def __init__(self, class_: type, args: list[Any] | None) -> None:
        super().__init__(class_)
        self.args = args
        self.cause: Value | None = None  # set by `raise error from cause`
        # Offset in the segment's first frame where it was raised; the segment ends there if the exception leaves it. None: not
        # raised yet.
        self.raised_at: int | None = None

    @property
    def is_object(self) -> bool:
        return False

    def written(self) -> str:
        """The call that makes it, such as `ValueError('no rows')`; its class alone, unless the arguments are known constants."""
        args = [] if self.args is None else self.args
        if not args or not all(isinstance(arg, ConstantValue) for arg in args):
            return self.kind
        return f"{self.kind}({', '.join(repr(arg.value) for arg in args)})"

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        if name in ("__class__", "__dict__"):
            return super().load_attr(domain, name)
        if name in _METHODS and not isinstance(in_mro(self.class_, name), FunctionType):
            return NativeMethodValue(self, name)
        if name == "args" and self.args is not None:
            return SequenceValue(tuple, list(self.args))
        if name in self.attributes:
            return self.attributes[name]
        if name == "value" and issubclass(self.class_, StopIteration) and self.args is not None:
            return self.args[0] if self.args else ConstantValue(None)
        if name == "__cause__":
            return ConstantValue(None) if self.cause is None else self.cause
        if name in _NOT_KNOWN or name.startswith("__"):
            unsupported(f"attribute {name}", self)
        return super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Value:
        match name:
            case _ if kwargs:
                unsupported(f"method {name}", self)
            case "__init__":
                self.args = list(args)
                return ConstantValue(None)
            case "with_traceback" if domain.is_none(args[0]) or isinstance(
                domain.state.realize(args[0]), TracebackValue
            ):
                return self
            case "__str__" if not args:
                return self._message(domain)
            case _:
                unsupported(f"method {name}", self)

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        """An assignment to `__traceback__` of the traceback that `__exit__` was given changes nothing that is known here."""
        if name == "__traceback__" and isinstance(domain.state.realize(attribute), TracebackValue):
            return None
        return super().store_attr(domain, name, attribute)

    def text(self, domain: SymbolicDomain, kind: str) -> Any:
        match kind:
            case "s":
                return self._message(domain)
            case "r" if self.args is not None and in_mro(self.class_, "__repr__") is BaseException.__repr__:
                plain = tuple(domain.constant_of(arg, "repr()") for arg in self.args)
                return ConstantValue(f"{self.class_.__name__}{f'({plain[0]!r})' if len(plain) == 1 else repr(plain)}")
            case _:
                return super().text(domain, kind)

    def format(self, domain: SymbolicDomain, spec: Any) -> Any:
        return self._message(domain) if spec is None else super().format(domain, spec)

    def _message(self, domain: SymbolicDomain) -> Value:
        """`str(error)`."""
        if isinstance(in_mro(self.class_, "__str__"), FunctionType) or self.args is None:
            unsupported("str()", self)
        plain = [domain.constant_of(arg, "str()") for arg in self.args]
        return ConstantValue(str(native_base(self.class_)(*plain)))

    def rebuilt(self, emitter: Any) -> str:
        if self.args is None or self.raised_at is not None:
            raise GraphBreak("cannot_rebuild", kind=self.kind).restarting_at(self.raised_at)
        class_ = emitter.constant(self.class_)
        name = emitter.named(self, f"{class_}.__new__({class_}, {emitter.listed(self.args)})")
        emitter.line(f"{emitter.constant(native_base(self.class_).__init__)}({name}, {emitter.listed(self.args)})")
        self._rebuild_attributes(emitter, name)
        return name


class TracebackValue(Value):
    """The traceback argument of `__exit__`. There is no traceback, so the graph breaks if the program uses it."""

    __slots__ = ("error",)

    def __init__(self, error: ErrorValue) -> None:
        super().__init__()
        self.error = error

    def rebuilt(self, emitter: Any) -> str:
        raise GraphBreak("cannot_rebuild", kind="traceback").restarting_at(self.error.raised_at)


def native_base(class_: type) -> type:
    """The builtin exception class from which a class derives."""
    return next(base for base in class_.__mro__ if base.__module__ == "builtins")


def is_plain_error(class_: type) -> bool:
    """Whether constructing an instance only stores the arguments, in `__init__`."""
    return (
        issubclass(class_, BaseException)
        and not issubclass(class_, _OWN_CONSTRUCTION)
        and type(class_) is type
        and type(in_mro(class_, "__new__")) is BuiltinFunctionType
        and in_mro(class_, "__new__") is in_mro(native_base(class_), "__new__")
        and class_.__getattribute__ is BaseException.__getattribute__
    )


def make_error(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls an exception class."""
    if not is_plain_error(class_):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    made = ErrorValue(class_, list(args))
    init = in_mro(class_, "__init__")
    if isinstance(init, FunctionType):
        function = domain.state.wrap(init, AttributeSource(KeptSource(class_, class_.__qualname__), "__init__"))
        return domain.enter_polyfill(
            polyfills.initialised, [made, function, SequenceValue(tuple, list(args)), domain.named(kwargs)]
        )
    if kwargs:
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    return made
