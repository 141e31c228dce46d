"""Sets and frozensets: a real table of keys beside the program's, filled in the same way, so that it has the same order.

Counterpart: torch/_dynamo/variables/dicts.py SetVariable, FrozensetVariable
Differs: a set that the segment makes is made again by the same steps (`steps`: a template and its operands each), for its order
depends on them. Where the order of a set is not known, iterating over it is a graph break; everything else is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.concrete import BINARY, COMPARE
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.keys import is_ordered_key
from refimpl.capture.symbolic.raising import UserRaise, raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)


class SetAt(NamedTuple):
    """A set as it was after so many steps."""

    value: SetValue
    steps: int


class ListOf(NamedTuple):
    """A list of these."""

    items: list[Value]


class DictOf(NamedTuple):
    """A dict with these keys, or a view of it."""

    keys: list[Value]
    is_view: bool


class _Operand(NamedTuple):
    real: Any
    written: Any  # SetAt, ListOf, DictOf or a value: how a step writes it
    values: dict[Any, Value]
    is_ordered: bool


_MAKING = frozenset(["union", "intersection", "difference", "symmetric_difference"])
_ASKING = frozenset(["issubset", "issuperset", "isdisjoint"])
_CHANGING = frozenset(["update", "intersection_update", "difference_update", "symmetric_difference_update"])
_OF_ONE = frozenset(["symmetric_difference", "symmetric_difference_update", "issubset", "issuperset", "isdisjoint"])
_SIGNS = {"|": "update", "&": "intersection_update", "-": "difference_update", "^": "symmetric_difference_update"}
_MOST_STEPS = 5000


class SymbolicSets(SymbolicBase):
    """What is done with sets."""

    # ------------------------------------------------------------------------------------------------------------- making

    def make_set(self, class_: type, items: list[Value]) -> SetValue:
        """`{*items}`, one added after the other."""
        made = SetValue(set)
        for item in items:
            self.add_to_set(made, item)
        return made if class_ is set else self._derived(frozenset, "frozenset({0})", [self._operand(made)])

    def set_of(self, class_: type, iterable: Value) -> Value:
        """`set(iterable)` or `frozenset(iterable)`."""
        if class_ is frozenset and self.class_of_set(iterable) is frozenset:
            return iterable
        return self._derived(class_, class_.__name__ + "({0})", [self._operand(iterable)])

    def class_of_set(self, value: Value) -> type | None:
        """`set` or `frozenset`; None for what is neither."""
        if isinstance(value, SetValue):
            return value.class_
        return frozenset if isinstance(value, ConstantValue) and type(value.value) is frozenset else None

    def as_set(self, value: Value) -> SetValue:
        """A constant frozenset as one whose elements are values."""
        if isinstance(value, SetValue):
            return value
        assert isinstance(value, ConstantValue)
        made = SetValue(frozenset)
        made.real = value.value
        made.values = {key: self.key_value(key) for key in value.value}
        made.steps.append(("{0}", (value,)))
        return made

    def _derived(self, class_: type, template: str, operands: list[_Operand]) -> SetValue:
        """A new set, made as `template` says."""
        made = SetValue(class_)
        made.real = eval(template.format(*(f"operands[{index}].real" for index in range(len(operands)))))
        self._note_values(made, operands)
        made.is_ordered = all(operand.is_ordered for operand in operands)
        made.steps.append((template, tuple(operand.written for operand in operands)))
        for operand in operands:
            if isinstance(operand.written, SetAt) and operand.written.value.source is not None:
                operand.written.value.is_read = True
        return made

    def _note_values(self, made: SetValue, operands: list[_Operand]) -> None:
        """Equal elements can be of different classes: which of them is in the table is asked of the table."""
        found: dict[Any, Value] = {}
        known = [made.values, *(operand.values for operand in operands)]
        for key in made.real:
            value = next((values[key] for values in known if key in values), None)
            is_other = isinstance(value, ConstantValue) and type(value.value) is not type(key)
            found[key] = self.key_value(key) if value is None or is_other else value
        made.values = found

    def _operand(self, value: Value) -> _Operand:
        value = self.state.see(value)
        if isinstance(value, SetValue):
            return _Operand(value.real, SetAt(value, len(value.steps)), value.values, value.is_ordered)
        if self.class_of_set(value) is frozenset:
            found = self.as_set(value)
            return _Operand(found.real, value, found.values, True)
        items = self.elements(value)
        keys = [self.hash_key(item) for item in items]
        values = dict(
            zip(reversed(keys), map(self.state.see, reversed(items)), strict=True)
        )  # the first of equal ones counts
        is_ordered = all(map(is_ordered_key, keys))
        if isinstance(value, DictValue):
            return _Operand(dict.fromkeys(keys), DictOf(items, False), values, is_ordered)
        if isinstance(value, DictViewValue) and value.which == "keys":
            return _Operand(dict.fromkeys(keys).keys(), DictOf(items, True), values, is_ordered)
        return _Operand(keys, ListOf(items), values, is_ordered)

    # ----------------------------------------------------------------------------------------------------------- changing

    def _will_change(self, target: SetValue) -> None:
        if target.is_read:
            unsupported("a change after others were made of it", target)
        if len(target.steps) >= _MOST_STEPS:
            raise GraphBreak("too_many_instructions", what=_MOST_STEPS)
        self.state.effects.will_change(target)

    def add_to_set(self, target: SetValue, item: Value) -> None:
        """`target.add(item)`."""
        item = self.state.see(item)
        key = self.hash_key(item)
        self._will_change(target)
        if key not in target.real:
            target.values[key] = item
        target.real.add(key)
        target.is_ordered = target.is_ordered and is_ordered_key(key)
        target.steps.append(("{self}.add({0})", (item,)))

    def update_set(self, target: SetValue, iterable: Value, method: str = "update") -> None:
        """`target.update(iterable)` or one of its like."""
        operand = self._operand(iterable)
        if isinstance(operand.written, SetAt) and operand.written.value.source is not None:
            if operand.written.value is target:
                unsupported(method, target)
            operand.written.value.is_read = True
        self._will_change(target)
        getattr(target.real, method)(operand.real)
        self._note_values(target, [operand])
        target.is_ordered = target.is_ordered and operand.is_ordered
        target.steps.append((f"{{self}}.{method}({{0}})", (operand.written,)))

    def _discard(self, target: SetValue, item: Value, name: str) -> None:
        key = self._sought(item)
        if name == "remove" and key not in target.real:
            raise UserRaise(ErrorValue(KeyError, [item]))
        self._will_change(target)
        target.real.discard(key)
        target.values.pop(key, None)
        target.steps.append((f"{{self}}.{name}({{0}})", (item,)))

    def _pop(self, target: SetValue) -> Value:
        if not target.real:
            raising(KeyError, "pop from an empty set")
        if not target.is_ordered and len(target.real) > 1:
            unsupported("pop() in an order that is not known", target)
        self._will_change(target)
        key = target.real.pop()
        target.steps.append(("{self}.pop()", ()))
        return target.values.pop(key)

    # ------------------------------------------------------------------------------------------------------------- asking

    def _sought(self, item: Value) -> Any:
        """The key to look for: a set is sought as a frozenset."""
        found: Any = self.state.see(item)
        is_set = isinstance(found, SetValue) and found.class_ is set
        return frozenset(found.real) if is_set else self.hash_key(found)

    def is_in_set(self, item: Value, container: Value) -> bool:
        """`item in container`."""
        return self._sought(item) in self.as_set(container).real

    def elements_of_set(self, value: SetValue) -> list[Value]:
        """In the order of the table. Breaks where that is not known."""
        if value.order is not None and not value.steps:
            return [value.values[key] for key in value.order]
        if not value.is_ordered and len(value.real) > 1:
            unsupported("iterating in an order that is not known", value)
        return [value.values[key] for key in value.real]

    def sortable_elements(self, value: SetValue) -> list[Value] | None:
        """In any order, where they are numbers or strings that have one of their own."""
        kinds = {type(key) for key in value.real}
        return [*value.values.values()] if kinds <= {int, bool} or kinds <= {str} else None

    # ------------------------------------------------------------------------------------------------ methods and operators

    def method_of_set(self, receiver: SetValue, name: str, args: list[Any]) -> Value:
        """`receiver.name(*args)`."""
        if not hasattr(receiver.class_, name) or (name in _OF_ONE and len(args) != 1):
            raise GraphBreak("op_raises_on_fake", what=name, error="an exception")
        match name, len(args):
            case "add", 1:
                self.add_to_set(receiver, args[0])
            case (("discard" | "remove"), 1):
                self._discard(receiver, args[0], name)
            case "clear", 0:
                self._will_change(receiver)
                receiver.real.clear()
                receiver.values.clear()
                receiver.is_ordered = True
                receiver.steps.append(("{self}.clear()", ()))
            case "pop", 0:
                return self._pop(receiver)
            case "copy", 0 if receiver.class_ is frozenset:
                return receiver
            case "copy", 0:
                return self._derived(set, "{0}.copy()", [self._operand(receiver)])
            case "__contains__", 1:
                return ConstantValue(self.is_in_set(args[0], receiver))
            case "__len__", 0:
                return ConstantValue(len(receiver.real))
            case _ if name in _ASKING:
                return ConstantValue(getattr(receiver.real, name)(self._operand(args[0]).real))
            case _ if name in _MAKING:
                operands = [self._operand(value) for value in (receiver, *args)]
                places = ", ".join(f"{{{index}}}" for index in range(1, len(operands)))
                return self._derived(receiver.class_, f"{{0}}.{name}({places})", operands)
            case _ if name in _CHANGING:
                for other in args:
                    self._operand(other)  # breaks before anything is changed
                for other in args:
                    self.update_set(receiver, other, name)
            case _:
                unsupported(f"method {name}", receiver)
        return ConstantValue(None)

    def is_like_set(self, value: Value) -> bool:
        """Whether it is a set, a frozenset or a view of keys."""
        is_view = isinstance(value, DictViewValue) and value.which == "keys"
        return is_view or self.class_of_set(value) is not None

    def binary_of_sets(self, sign: str, left: Value, right: Value) -> Value:
        """`|`, `&`, `-`, `^` and `|=` and its like, where one side is a set or a view of keys."""
        plain = sign.removesuffix("=")
        method = _SIGNS.get(plain)
        is_view = isinstance(left, DictViewValue) or isinstance(right, DictViewValue)  # takes any iterable
        if method is None or not (is_view or (self.is_like_set(left) and self.is_like_set(right))):
            unsupported(f"`{sign}`", left)
        if sign != plain and isinstance(left, SetValue) and left.class_ is set:
            if isinstance(right, DictViewValue):
                unsupported(f"`{sign}`", right)
            self.update_set(left, right, method)
            return left
        operands = [self._operand(left), self._operand(right)]
        class_ = self.class_of_set(left) or self.class_of_set(right) or set
        if is_view:
            class_ = type(BINARY[plain](operands[0].real, operands[1].real))
        return self._derived(class_, f"{{0}} {plain} {{1}}", operands)

    def compare_sets(self, sign: str, left: Value, right: Value) -> Value:
        """A comparison where one side is a set or a view of keys."""
        if self.is_like_set(left) and self.is_like_set(right):
            return ConstantValue(COMPARE[sign](self._operand(left).real, self._operand(right).real))
        other = right if self.is_like_set(left) else left
        if sign in ("==", "!=") and isinstance(other, (ConstantValue, SequenceValue, DictValue)):
            return ConstantValue(sign == "!=")
        unsupported(f"`{sign}`", other if isinstance(other, TensorValue) else left)
