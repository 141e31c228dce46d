"""Constants, and symbolic numbers.

Counterpart: torch/_dynamo/variables/constant.py ConstantVariable, tensor.py SymNodeVariable
"""

from __future__ import annotations

import inspect
import operator
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from refimpl._torch import PLAIN_TYPES, is_exporting
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.classes import MISSING, in_mro
from refimpl.capture.values.hashing import CONSTANT_KEYS
from refimpl.capture.values.value import Value, advanced_by_steps, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_MOST_ELEMENTS = 4096
_LARGE = 2**63  # torch operators do not take larger ints


class ConstantValue(Value):
    """A constant: a number, string, None, dtype, device and the like. Equal objects are interchangeable."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    @property
    def kind(self) -> str:
        return type(self.value).__name__

    @property
    def is_constant(self) -> bool:
        return True

    @property
    def equality_is_identity(self) -> bool:
        return True

    @property
    def is_like_set(self) -> bool:
        return type(self.value) is frozenset

    @property
    def is_number(self) -> bool:
        """Whether it can be an operand of arithmetic with a symbolic number."""
        return type(self.value) in (int, float, bool)

    def class_of(self) -> type:
        return type(self.value)

    def class_of_operand(self) -> type:
        return type(self.value)

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        return self.value

    def hash_key(self, domain: SymbolicDomain) -> Any:
        if type(self.value) in (*CONSTANT_KEYS, frozenset, CodeType):
            return self.value
        if type(self.value) is float and self.value == self.value:
            return self.value
        unsupported("a key", self)

    def truth(self, domain: SymbolicDomain) -> bool:
        return bool(self.value)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if left.is_constant and right.is_constant:
            return domain.folded(BINARY[sign], [left, right], {})
        if left.is_like_set or right.is_like_set:
            return domain.binary_of_sets(sign, left, right)
        return super().binary(domain, sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if left.is_like_set or right.is_like_set:
            return domain.compare_sets(sign, left, right)
        return domain.folded(COMPARE[sign], [left, right], {})

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        found = in_mro(type(self.value), name)
        if found is MISSING:
            raising(AttributeError)
        if name == "__class__":
            return domain.object(type(self.value))
        if inspect.isroutine(found):
            return NativeMethodValue(self, name)
        return domain.value_of(getattr(self.value, name), f"attribute {name}")

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        return hasattr(self.value, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if type(self.value) is torch.device and name in ("__enter__", "__exit__"):
            return domain.enter_device(self)[1] if name == "__enter__" else domain.leave_device()
        if name == "__iter__" and not args and not kwargs:
            return domain.get_iter(self)
        if args and domain.runs_code(args[0]):
            given = [NativeMethodValue(self, name), args[0], domain.build("tuple", args[1:]), domain.named(kwargs)]
            return domain.enter_polyfill(polyfills.called_with_list, given)
        return domain.folded(getattr(self.value, name), args, kwargs)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        return domain.enter_device(self) if type(self.value) is torch.device else super().enter_context(domain)

    def length(self, domain: SymbolicDomain) -> Any:
        return domain.folded(len, [self], {})

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        if self.is_like_set:
            return ConstantValue(domain.as_set(self).holds(domain, item) is not inverted)
        if not isinstance(item, (ConstantValue, NumberValue)):
            unsupported("`in`", self)
        is_in = domain.constant_of(domain.folded(operator.contains, [self, item], {}), "`in`")
        return ConstantValue(is_in is not inverted)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        key = domain.known_key(key, is_constant=True)
        if not isinstance(key, ConstantValue):
            unsupported("an item", self)
        return domain.folded(operator.getitem, [self, key], {})

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        if isinstance(self.value, (str, bytes, range)):
            if len(self.value) > _MOST_ELEMENTS:
                raise GraphBreak("too_many_instructions", what=_MOST_ELEMENTS)
            return [ConstantValue(item) for item in self.value]
        if self.is_like_set:
            return domain.as_set(self).elements(domain)
        return super().elements(domain)

    def iterate(self, domain: SymbolicDomain) -> Any:
        return domain.iterator(self, self.elements(domain))

    def rebuilt(self, emitter: Any) -> str:
        return emitter.constant(self.value)

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        if self.is_like_set:
            return advanced_by_steps(emitter, self, iterator)
        return super().iterator_rebuilt(emitter, iterator)

    @property
    def exhausted(self) -> str:
        return repr(type(self.value)()) if type(self.value) in (str, bytes) else "range(0)"

    def as_fake(self, state: Any, what: str) -> Any:
        if type(self.value) is int and not -_LARGE <= self.value < _LARGE:
            raise GraphBreak("not_a_graph_argument", what="int of more than 64 bits")
        return self.value

    def as_argument(self, state: Any) -> Any:
        return self.value


class NumberValue(Value):
    """A symbolic number (SymInt, SymFloat or SymBool), with its node once there is one."""

    __slots__ = ("node", "number")
    operand_rank = 3

    def __init__(self, number: Any, node: Node | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.number = number
        self.node = node

    @property
    def is_number(self) -> bool:
        """Whether it can be an operand of arithmetic with a symbolic number."""
        return True

    def class_of(self) -> type:
        return PLAIN_TYPES[type(self.number)]

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        return domain.state.specialised(self).value

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return domain.state.specialised(self).hash_key(domain)

    @property
    def is_float_of_inputs(self) -> bool:
        """Whether it is computed from a float that the graph takes: one that is known during capture, so that guards can hold it.
        Floats that are computed from sizes alone are operations of the graph.
        """
        node: Any = self.number.node
        if not isinstance(self.number, torch.SymFloat) or not node.has_hint():
            return False
        return any(not symbol.is_integer for symbol in node.expr.free_symbols)

    def truth(self, domain: SymbolicDomain) -> bool:
        if self.is_float_of_inputs:
            return bool(self.number != 0.0)  # a guard on this alone
        return bool(domain.state.specialised(self).value)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        if self.is_float_of_inputs:
            return domain.state.specialised(self).load_attr(domain, name)
        return super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self.is_float_of_inputs:
            return domain.state.specialised(self).call_method(domain, frame, name, args, kwargs)
        return super().call_method(domain, frame, name, args, kwargs)

    def unary(self, domain: SymbolicDomain, sign: str) -> Any:
        return domain.state.arithmetic(UNARY[sign], [self])

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if is_number(left) and is_number(right):
            return domain.state.arithmetic(BINARY[sign.removesuffix("=")], [left, right])
        return domain.binary(sign, known(domain, left), known(domain, right))

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if is_number(left) and is_number(right):
            return domain.state.arithmetic(COMPARE[sign], [left, right])
        return domain.compare(sign, known(domain, left), known(domain, right))

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        return hasattr(self.class_of(), name)

    def rebuilt(self, emitter: Any) -> str:
        # A SymBool with a hint depends on sizes alone, and a guard holds it to its value. An exported program is its graph: it
        # computes the condition at every call.
        is_known = isinstance(self.number, torch.SymBool) and self.number.node.has_hint() and not is_exporting()
        if self.node is not None and not is_known:
            return emitter.named(self, emitter.output(self.node))
        return repr(bool(self.number))

    def as_fake(self, state: Any, what: str) -> Any:
        return self.number

    def as_argument(self, state: Any) -> Any:
        return state.node_of(self)


class NestedIntValue(NumberValue):
    """A size or stride of a jagged tensor that stands for the lengths of its rows. It equals those of the same offsets."""

    __slots__ = ("dim", "method", "tensor")

    def __init__(self, number: Any, node: Node, tensor: Value, method: str, dim: int) -> None:
        super().__init__(number, node)
        self.tensor = tensor
        self.method = method
        self.dim = dim

    def rebuilt(self, emitter: Any) -> str:
        """Overrides NumberValue: a graph cannot return a nested int, so it is read from the tensor after the graph has run."""
        return emitter.named(self, f"{emitter.expression(self.tensor)}.{self.method}({self.dim})")


def is_number(value: Value) -> bool:
    """Whether the value is a number, constant or symbolic."""
    return isinstance(value, (ConstantValue, NumberValue)) and value.is_number


def is_float_of_inputs(value: Value) -> bool:
    """Whether the value is a symbolic float that guards can hold."""
    return isinstance(value, NumberValue) and value.is_float_of_inputs


def known(domain: SymbolicDomain, value: Value) -> Value:
    """A symbolic number as a constant, with a guard; other values unchanged."""
    return domain.state.specialised(value) if isinstance(value, NumberValue) else value
