"""Rules for functions that ask about symbolic numbers without deciding them, or join conditions: `guard_or_false`, `sym_or`.

Counterpart: torch/_dynamo/variables/torch.py handle_guard_or_false, handle_statically_known_true, handle_sym_or and their like
Differs: the functions are found by their module and name, because that module is not imported here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import upstream_shape_error
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.rules.rule_table import wrong
from refimpl.capture.state.operator_calls import number_of
from refimpl.capture.values import ConstantValue, NumberValue, SequenceValue, Value
from refimpl.capture.values.value import unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_MODULE = upstream_shape_error("GuardOnDataDependentSymNode").__module__
_PLACE = ("", 0)  # the methods of symbolic numbers take a file and a line, for messages of torch's


def symbol_rule(function: Any) -> Callable[[SymbolicDomain, list[Any], dict[str, Any]], Value] | None:
    """The rule for a call of this function, if it is one of torch's module of symbolic sizes."""
    if (
        type(function) is not FunctionType or function.__module__ != _MODULE
    ):  # also one that warns that it is deprecated
        return None
    return _RULES.get(function.__name__)


def _question(name: str) -> Any:
    """A condition is asked for its truth by the method of this name."""

    def asked(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
        condition = domain.state.realize(args[0] if args else kwargs.get("a", kwargs.get("x", kwargs.get("expr"))))
        match condition:
            case NumberValue() if isinstance(condition.number, torch.SymBool):
                return ConstantValue(bool(getattr(condition.number.node, name)(*_PLACE)))
            case ConstantValue() if type(condition.value) is bool:
                return condition
            case _:
                unsupported(name, condition)

    return asked


def _statically_known_false(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    condition = domain.state.realize(args[0] if args else kwargs.get("x"))
    if isinstance(condition, NumberValue) and isinstance(condition.number, torch.SymBool):
        return ConstantValue(condition.number.node.sym_not().statically_known_true(*_PLACE))
    if isinstance(condition, ConstantValue) and type(condition.value) is bool:
        return ConstantValue(not condition.value)
    unsupported("statically_known_false", condition)


def _joined(function: Any) -> Any:
    """Conditions are joined, without asking any of them."""

    def joined(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
        if not args or kwargs:
            wrong(f"sym_{function.__name__.rstrip('_')}")
        result = domain.state.realize(args[0])
        for arg in args[1:]:
            result = _pair(domain, function, result, domain.state.realize(arg))
        return result

    return joined


def _pair(domain: SymbolicDomain, function: Any, left: Value, right: Value) -> Value:
    numbers = []
    for value in (left, right):
        number = value.number if isinstance(value, NumberValue) else getattr(value, "value", None)
        if not isinstance(number, (bool, torch.SymBool)):
            unsupported(function.__name__, value)
        numbers.append(number)
    result = function(*numbers)
    if isinstance(result, bool):
        return ConstantValue(result)
    nodes = [domain.state.argument_of(value) for value in (left, right)]
    return NumberValue(result, domain.state.graph.call("call_function", function, nodes, {}, result))


def _equal(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`sym_eq` of numbers, or of sequences of them."""
    if len(args) != 2 or kwargs:
        wrong("sym_eq")
    return _equal_values(domain, *(domain.state.realize(arg) for arg in args))


def _equal_values(domain: SymbolicDomain, left: Any, right: Any) -> Value:
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        if len(left.items) != len(right.items):
            return ConstantValue(False)
        result: Value = ConstantValue(True)
        for one, other in zip(left.items, right.items, strict=True):
            same = _equal_values(domain, domain.state.realize(one), domain.state.realize(other))
            result = _pair(domain, operator.and_, result, same)
        return result
    if not isinstance(left, (NumberValue, ConstantValue)) or not isinstance(right, (NumberValue, ConstantValue)):
        raise GraphBreak("op_raises_on_fake", what="sym_eq", error="AssertionError")
    return domain.compare("==", left, right)


def _hint(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """The value that the number has while it is captured; no guard holds it."""
    number = domain.state.realize(args[0])
    if isinstance(number, ConstantValue):
        return number
    fallback = domain.state.realize(kwargs.get("fallback", args[1] if len(args) > 1 else ConstantValue(None)))
    if not isinstance(number, NumberValue) or not isinstance(fallback, ConstantValue):
        unsupported("a hint", number)
    hint = number_of(number.number)
    if hint is not None:
        return ConstantValue(hint)
    if fallback.value is None:
        raise GraphBreak("guard_on_data", what=f"the hint of {number.number}")
    return fallback


def _has_hint(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    number = domain.state.realize(args[0])
    return ConstantValue(not isinstance(number, NumberValue) or number_of(number.number) is not None)


def _has_static_value(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """Whether what is known of the number leaves one value only. To Python every size is an int, also one that is a symbol."""
    number = domain.state.realize(args[0] if args else kwargs.get("a"))
    if isinstance(number, NumberValue):
        node = number.number.node
        if isinstance(number.number, torch.SymBool):
            return ConstantValue(node.shape_env.decided(node.expr) is not None)
        return ConstantValue(node.shape_env.bound_sympy(node.expr).is_singleton())
    if isinstance(number, ConstantValue) and type(number.value) in (bool, int, float):
        return ConstantValue(True)
    unsupported("has_static_value", number)


def _is_concrete(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """Whether the number is no symbol."""
    number = domain.state.realize(args[0] if args else kwargs.get("a"))
    if isinstance(number, NumberValue):
        node = number.number.node
        return ConstantValue(node.shape_env.replace(node.expr).is_number)
    return _has_static_value(domain, [number], {})


_RULES: dict[str, Any] = {
    "guard_or_false": _question("guard_or_false"),
    "guard_or_true": _question("guard_or_true"),
    "guard_size_oblivious": _question("guard_size_oblivious"),
    "guard_bool": _question("guard_bool"),
    "statically_known_true": _question("statically_known_true"),
    "statically_known_false": _statically_known_false,
    "sym_and": _joined(operator.and_),
    "sym_or": _joined(operator.or_),
    "sym_eq": _equal,
    "hint_int": _hint,
    "optimization_hint": _hint,
    "guarding_hint_or_throw": _hint,
    "has_guarding_hint": _has_hint,
    "has_static_value": _has_static_value,
    "is_concrete_bool": _is_concrete,
    "is_concrete_float": _is_concrete,
    "is_concrete_int": _is_concrete,
}
