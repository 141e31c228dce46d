"""Sets and frozensets. A real set of keys is filled by the same steps as the program's, so that it has the same order.

Counterpart: torch/_dynamo/variables/dicts.py SetVariable, FrozensetVariable
Differs: a set is rebuilt by the same steps as in the program (`steps`: templates with operands), because its order depends on
them. Where the order is unknown, only iterating breaks the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import BINARY, COMPARE
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.hashing import is_ordered_key
from refimpl.capture.values.mapping import DictValue, DictViewValue
from refimpl.capture.values.sequence import (
    SequenceValue,
    attribute_of_container,
    call_from,
    has_attribute_of_container,
    refuse_hash,
)
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import UserRaise, Value, advanced_by_steps, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_MAKING = frozenset(["union", "intersection", "difference", "symmetric_difference"])
_ASKING = frozenset(["issubset", "issuperset", "isdisjoint"])
_CHANGING = frozenset(["update", "intersection_update", "difference_update", "symmetric_difference_update"])
_OF_ONE = frozenset(["symmetric_difference", "symmetric_difference_update", "issubset", "issuperset", "isdisjoint"])
_SIGNS = {"|": "update", "&": "intersection_update", "-": "difference_update", "^": "symmetric_difference_update"}
_MOST_STEPS = 5000
_MOST_REMADE = 200  # sets that are rebuilt in a former state
Step = tuple[str, tuple[Any, ...]]


class SetValue(Value):
    """A set or frozenset. `real` is a set of the elements' keys, filled in the same order as the program's set.

    `values`: the elements by key. `steps`: how the set was made, or how a set of the program was changed.
    `order`: the keys of an unchanged set of the program. `is_read`: other sets were made from it, so it must not change any
    more.
    """

    __slots__ = ("class_", "is_ordered", "is_read", "order", "real", "steps", "values")

    def __init__(self, class_: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.class_ = class_
        self.real: Any = class_()
        self.values: dict[Any, Value] = {}
        self.steps: list[Step] = []
        self.order: list[Any] | None = None
        self.is_ordered = True  # whether iterating over `real` gives the program's order
        self.is_read = False

    @property
    def kind(self) -> str:
        return self.class_.__name__

    @property
    def is_like_set(self) -> bool:
        return True

    @property
    def equality_is_identity(self) -> bool:
        return True

    def class_of(self) -> type:
        return self.class_

    def class_of_operand(self) -> type:
        return self.class_

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        return self.real if self.source is None and self.is_ordered else unsupported(what, self)

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return self.real if self.class_ is frozenset else refuse_hash(self, self.class_)

    def truth(self, domain: SymbolicDomain) -> bool:
        return bool(self.real)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        return domain.binary_of_sets(sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        return domain.compare_sets(sign, left, right)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return attribute_of_container(domain, self, self.class_, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        return has_attribute_of_container(self, self.class_, name)

    # ------------------------------------------------------------------------------------------------------ asking

    def length(self, domain: SymbolicDomain) -> Value:
        return ConstantValue(len(self.real))

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Value:
        return ConstantValue(self.holds(domain, item) is not inverted)

    def holds(self, domain: SymbolicDomain, item: Value) -> bool:
        """`item in self`."""
        return self._sought(domain, item) in self.real

    def _sought(self, domain: SymbolicDomain, item: Value) -> Any:
        """The key to look up. A set is looked up as a frozenset, as Python does."""
        found: Any = domain.state.realize(item)
        is_set = isinstance(found, SetValue) and found.class_ is set
        return frozenset(found.real) if is_set else domain.hash_key(found)

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        """The elements in order. Breaks the graph if the order is unknown."""
        if self.order is not None and not self.steps:
            return [self.values[key] for key in self.order]
        if not self.is_ordered and len(self.real) > 1:
            unsupported("iterating in an order that is not known", self)
        return [self.values[key] for key in self.real]

    def sortable_elements(self) -> list[Value] | None:
        """The elements in any order, if they are all numbers or all strings, so that sorting gives one result; else None."""
        kinds = {type(key) for key in self.real}
        return [*self.values.values()] if kinds <= {int, bool} or kinds <= {str} else None

    def iterate(self, domain: SymbolicDomain) -> Any:
        return domain.iterator(self, self.elements(domain))

    def check_iterated(self, iterator: Any) -> None:
        if len(self.real) != len(iterator.items):
            raising(RuntimeError, "Set changed size during iteration")
        if any(value is not item for value, item in zip(self.values.values(), iterator.items, strict=False)):
            if {id(value) for value in self.values.values()} != {id(item) for item in iterator.items}:
                unsupported("iterating while elements change", self)

    # ---------------------------------------------------------------------------------------------------- changing

    def _will_change(self, domain: SymbolicDomain) -> None:
        if self.is_read:
            unsupported("a change after others were made of it", self)
        if len(self.steps) >= _MOST_STEPS:
            raise GraphBreak("too_many_instructions", what=_MOST_STEPS)
        domain.state.effects.will_change(self)

    def add(self, domain: SymbolicDomain, item: Value) -> None:
        """`self.add(item)`."""
        item = domain.state.realize(item)
        key = domain.hash_key(item)
        self._will_change(domain)
        if key not in self.real:
            self.values[key] = item
        self.real.add(key)
        self.is_ordered = self.is_ordered and is_ordered_key(key)
        self.steps.append(("{self}.add({0})", (item,)))

    def update(self, domain: SymbolicDomain, iterable: Value, method: str = "update") -> None:
        """`self.update(iterable)` or another in-place method."""
        operand = _operand(domain, iterable)
        if isinstance(operand.written, SetAt) and operand.written.value.source is not None:
            if operand.written.value is self:
                unsupported(method, self)
            operand.written.value.is_read = True
        self._will_change(domain)
        getattr(self.real, method)(operand.real)
        _note_values(domain, self, [operand])
        self.is_ordered = self.is_ordered and operand.is_ordered
        self.steps.append((f"{{self}}.{method}({{0}})", (operand.written,)))

    def _discard(self, domain: SymbolicDomain, item: Value, name: str) -> None:
        key = self._sought(domain, item)
        if name == "remove" and key not in self.real:
            raise UserRaise(KeyError, [item])
        self._will_change(domain)
        self.real.discard(key)
        self.values.pop(key, None)
        self.steps.append((f"{{self}}.{name}({{0}})", (item,)))

    def _pop(self, domain: SymbolicDomain) -> Value:
        if not self.real:
            raising(KeyError, "pop from an empty set")
        if not self.is_ordered and len(self.real) > 1:
            unsupported("pop() in an order that is not known", self)
        self._will_change(domain)
        key = self.real.pop()
        self.steps.append(("{self}.pop()", ()))
        return self.values.pop(key)

    def _clear(self, domain: SymbolicDomain) -> None:
        self._will_change(domain)
        self.real.clear()
        self.values.clear()
        self.is_ordered = True
        self.steps.append(("{self}.clear()", ()))

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs:
            unsupported(f"method {name}", self)
        if not hasattr(self.class_, name) or (name in _OF_ONE and len(args) != 1):
            raise GraphBreak("op_raises_on_fake", what=name, error="an exception")
        match name, len(args):
            case "add", 1:
                self.add(domain, args[0])
            case (("discard" | "remove"), 1):
                self._discard(domain, args[0], name)
            case "clear", 0:
                self._clear(domain)
            case "pop", 0:
                return self._pop(domain)
            case "copy", 0 if self.class_ is frozenset:
                return self
            case "copy", 0:
                return _derived(domain, set, "{0}.copy()", [_operand(domain, self)])
            case "__contains__", 1:
                return ConstantValue(self.holds(domain, args[0]))
            case "__len__", 0:
                return ConstantValue(len(self.real))
            case _ if name in _ASKING:
                return ConstantValue(getattr(self.real, name)(_operand(domain, args[0]).real))
            case _ if name in _MAKING:
                operands = [_operand(domain, value) for value in (self, *args)]
                places = ", ".join(f"{{{index}}}" for index in range(1, len(operands)))
                return _derived(domain, self.class_, f"{{0}}.{name}({places})", operands)
            case "update", 1 if domain.runs_code(args[0]):
                given = [NativeMethodValue(self, name), args[0], domain.build("tuple", []), domain.named({})]
                return domain.enter_polyfill(polyfills.called_with_list, given)
            case _ if name in _CHANGING:
                for other in args:
                    _operand(domain, other)  # breaks the graph before anything is changed
                for other in args:
                    self.update(domain, other, name)
            case "__iter__", 0:
                return domain.get_iter(self)
            case _, 1 if name.startswith("__"):
                return call_from({}, domain, self, name, args, kwargs)
            case _:
                unsupported(f"method {name}", self)
        return ConstantValue(None)

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        """Repeats the program's steps, because the order depends on them."""
        return self._made_by(emitter, self.steps)

    def _made_by(self, emitter: Any, steps: Sequence[Step]) -> str:
        (template, operands), rest = ("set()", ()), steps
        if rest and "{self}" not in rest[0][0]:
            (template, operands), rest = rest[0], rest[1:]
        name = emitter.named(self, template.format(*(_written(emitter, operand) for operand in operands)))
        _repeat(emitter, name, rest)
        return name

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        _repeat(emitter, name, self.steps)
        emitter.settled.add(id(self))

    def after(self, emitter: Any, count: int) -> str:
        """An expression for the set as it was after this many steps."""
        is_now = count == len(self.steps)
        if is_now and (self.source is None or not count or id(self) in emitter.settled):
            return emitter.expression(self)
        emitter.remade += 1
        if self.source is not None or emitter.remade > _MOST_REMADE:
            raise GraphBreak("cannot_rebuild", kind=self.kind)
        return SetValue(self.class_)._made_by(emitter, self.steps[:count])

    @property
    def exhausted(self) -> str:
        return "set()"

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        return advanced_by_steps(emitter, self, iterator)


# -------------------------------------------------------------------------------------------------------------- making


class SetAt(NamedTuple):
    """A set as it was after this many steps."""

    value: SetValue
    steps: int


class ListOf(NamedTuple):
    """A list of these values."""

    items: list[Value]


class DictOf(NamedTuple):
    """A dict with these keys, or a view of its keys."""

    keys: list[Value]
    is_view: bool


class PairsOf(NamedTuple):
    """A view of the items of a dict that has these."""

    items: list[Value]


class _Operand(NamedTuple):
    real: Any
    written: Any  # SetAt, ListOf, DictOf, PairsOf or a value: the operand of a step when it is rebuilt
    values: dict[Any, Value]
    is_ordered: bool


def _repeat(emitter: Any, name: str, steps: Sequence[Step]) -> None:
    """Adds lines that repeat the steps on a set."""
    for template, operands in steps:
        emitter.line(template.format(*(_written(emitter, operand) for operand in operands), self=name))


def _written(emitter: Any, operand: Any) -> str:
    """An expression for an operand of a step."""
    match operand:
        case SetAt():
            return operand.value.after(emitter, operand.steps)
        case ListOf():
            return f"[{emitter.listed(operand.items)}]"
        case DictOf():
            made = f"dict.fromkeys([{emitter.listed(operand.keys)}])"
            return f"{made}.keys()" if operand.is_view else made
        case PairsOf():
            return f"dict([{emitter.listed(operand.items)}]).items()"
        case _:
            return emitter.expression(operand)


def make_set(domain: SymbolicDomain, class_: type, items: list[Value]) -> SetValue:
    """`{*items}`: the elements are added one after the other."""
    made = SetValue(set)
    for item in items:
        made.add(domain, item)
    return made if class_ is set else _derived(domain, frozenset, "frozenset({0})", [_operand(domain, made)])


def set_of(domain: SymbolicDomain, class_: type, iterable: Value) -> Any:
    """`set(iterable)` or `frozenset(iterable)`."""
    if class_ is frozenset and _class_of_set(iterable) is frozenset:
        return iterable
    return _derived(domain, class_, class_.__name__ + "({0})", [_operand(domain, iterable)])


def _class_of_set(value: Value) -> type | None:
    """`set` or `frozenset`; None for what is neither."""
    return value.class_of() if value.is_like_set and not isinstance(value, DictViewValue) else None


def as_set(domain: SymbolicDomain, value: Value) -> SetValue:
    """A constant frozenset as a SetValue."""
    if isinstance(value, SetValue):
        return value
    assert isinstance(value, ConstantValue)
    made = SetValue(frozenset)
    made.real = value.value
    made.values = {key: domain.key_value(key) for key in value.value}
    made.steps.append(("{0}", (value,)))
    return made


def _derived(domain: SymbolicDomain, class_: type, template: str, operands: list[_Operand]) -> SetValue:
    """A new set, made by the expression `template`."""
    made = SetValue(class_)
    made.real = eval(template.format(*(f"operands[{index}].real" for index in range(len(operands)))))
    _note_values(domain, made, operands)
    made.is_ordered = all(operand.is_ordered for operand in operands)
    made.steps.append((template, tuple(operand.written for operand in operands)))
    for operand in operands:
        if isinstance(operand.written, SetAt) and operand.written.value.source is not None:
            operand.written.value.is_read = True
    return made


def _note_values(domain: SymbolicDomain, made: SetValue, operands: list[_Operand]) -> None:
    """Fills `made.values`. Equal elements can be of different classes (1 and True); the real set shows which of them was kept."""
    found: dict[Any, Value] = {}
    known = [made.values, *(operand.values for operand in operands)]
    for key in made.real:
        value = next((values[key] for values in known if key in values), None)
        is_other = isinstance(value, ConstantValue) and type(value.value) is not type(key)
        found[key] = domain.key_value(key) if value is None or is_other else value
    made.values = found


def _operand(domain: SymbolicDomain, value: Value) -> _Operand:
    value = domain.state.realize(value)
    if isinstance(value, SetValue):
        return _Operand(value.real, SetAt(value, len(value.steps)), value.values, value.is_ordered)
    if _class_of_set(value) is frozenset:
        found = as_set(domain, value)
        return _Operand(found.real, value, found.values, True)
    items = domain.elements(value)
    if isinstance(value, DictViewValue) and value.which == "items":
        _refuse_unknown_items(domain, value)
    keys = [domain.hash_key(item) for item in items]
    # The first of several equal elements is kept.
    values = dict(zip(reversed(keys), map(domain.state.realize, reversed(items)), strict=True))
    is_ordered = all(map(is_ordered_key, keys))
    if isinstance(value, DictValue):
        return _Operand(dict.fromkeys(keys), DictOf(items, False), values, is_ordered)
    if isinstance(value, DictViewValue) and value.which == "keys":
        return _Operand(dict.fromkeys(keys).keys(), DictOf(items, True), values, is_ordered)
    if isinstance(value, DictViewValue) and value.which == "items":
        return _Operand(dict(keys).items(), PairsOf(items), values, is_ordered)
    return _Operand(keys, ListOf(items), values, is_ordered)


def _refuse_unknown_items(domain: SymbolicDomain, view: DictViewValue) -> None:
    """A view of items hashes no values where it only looks for a pair: what it does is known for constants alone."""
    for _, item in view.over.items.values():
        if not isinstance(domain.state.realize(item), ConstantValue):
            unsupported("an operator", view)


def binary_of_sets(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Value:
    """`|`, `&`, `-`, `^` and the in-place forms, where one operand is a set or a view of keys or items."""
    plain = sign.removesuffix("=")
    method = _SIGNS.get(plain)
    is_view = isinstance(left, DictViewValue) or isinstance(right, DictViewValue)  # views accept any iterable
    if method is None or not (is_view or (left.is_like_set and right.is_like_set)):
        unsupported(f"`{sign}`", left)
    if sign != plain and isinstance(left, SetValue) and left.class_ is set:
        if isinstance(right, DictViewValue):
            unsupported(f"`{sign}`", right)
        left.update(domain, right, method)
        return left
    operands = [_operand(domain, left), _operand(domain, right)]
    class_ = _class_of_set(left) or _class_of_set(right) or set
    if is_view:
        class_ = type(BINARY[plain](operands[0].real, operands[1].real))
    return _derived(domain, class_, f"{{0}} {plain} {{1}}", operands)


def compare_sets(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Value:
    """A comparison in which one side is a set or a view of keys or items."""
    if left.is_like_set and right.is_like_set:
        return ConstantValue(COMPARE[sign](_operand(domain, left).real, _operand(domain, right).real))
    other = right if left.is_like_set else left
    if sign in ("==", "!=") and isinstance(other, (ConstantValue, SequenceValue, DictValue)):
        return ConstantValue(sign == "!=")
    unsupported(f"`{sign}`", other if isinstance(other, TensorValue) else left)
