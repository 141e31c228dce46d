"""Bound methods.

Counterpart: torch/_dynamo/variables/functions.py UserMethodVariable, misc.py GetAttrVariable
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_OF_METHODS = frozenset(dir(MethodType))  # a bound method has the other attributes of its function


class MethodValue(Value):
    """A Python function bound to a value."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value) -> None:
        super().__init__()
        self.function = function
        self.receiver = receiver

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.call(frame, self.function, [self.receiver, *args], kwargs)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        if name == "__func__":
            return self.function
        if name == "__self__":
            return self.receiver
        return super().load_attr(domain, name) if name in _OF_METHODS else domain.load_attr(self.function, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        return True if name in _OF_METHODS else domain.has_attribute(self.function, name)

    def rebuilt(self, emitter: Any) -> str:
        function = emitter.expression(self.function)
        return emitter.named(self, f"{emitter.constant(MethodType)}({function}, {emitter.expression(self.receiver)})")


class NativeMethodValue(Value):
    """A method written in C, bound to a tensor, a string, a list or a value of another builtin class."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.state.realize(self.receiver).call_method(domain, frame, self.name, args, kwargs)

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, f"getattr({emitter.expression(self.receiver)}, {self.name!r})")


def bound_by_get(domain: SymbolicDomain, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """The value of `function.__get__(receiver, class_)`: a bound method, or the function itself if the receiver is None.

    Python refuses None without a class.
    """
    is_refused = domain.is_none(args[0]) and all(map(domain.is_none, args[1:])) if args else True
    if len(args) > 2 or kwargs or is_refused:
        unsupported("__get__", function)
    return function if domain.is_none(args[0]) else MethodValue(function, domain.state.realize(args[0]))
