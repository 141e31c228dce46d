"""Dicts, and views of them.

Counterpart: torch/_dynamo/variables/dicts.py ConstDictVariable
Differs: a method checks its arguments before it changes a value, so that a graph break leaves the value unchanged.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import ItemSource, Source
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.classes import MISSING, in_mro
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.sequence import (
    CHANGING_METHODS,
    COMMON_METHODS,
    Method,
    SequenceValue,
    attribute_of_container,
    call_from,
    contained_in,
    has_attribute_of_container,
    nothing,
    refuse_hash,
    wrong,
)
from refimpl.capture.values.value import UserRaise, Value, advanced_by_steps, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


class DictValue(Value):
    """A dict, OrderedDict or defaultdict. `items` maps `domain.hash_key` of a key to the key's value and the item."""

    __slots__ = ("changed_at", "class_", "holder", "items", "removed")
    operand_rank = 1

    def __init__(
        self, items: dict[Any, tuple[Value, Value]], source: Source | None = None, class_: type = dict
    ) -> None:
        super().__init__(source)
        self.items = items
        self.class_ = class_
        self.holder: Value | None = None  # the object whose items these are, if its class derives from dict
        self.removed: set[Any] = set()  # the keys that were removed, also those that were added again after that
        self.changed_at: list[int] = []  # the positions in the segment at which keys were added or removed

    @property
    def kind(self) -> str:
        return self.class_.__name__

    @property
    def equality_is_identity(self) -> bool:
        return True

    @property
    def is_operand_of_tensors(self) -> bool:
        return False

    def class_of(self) -> type:
        return self.class_

    def class_of_operand(self) -> type:
        return self.class_

    def builtin_class(self) -> type:
        """The class whose methods an object of a class that derives from dict has."""
        is_ordered = self.holder is not None and issubclass(self.holder.class_of(), OrderedDict)
        return OrderedDict if is_ordered else self.class_

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        if self.class_ not in (dict, OrderedDict):
            unsupported(what, self)
        pairs = self.items.values()
        return self.class_([(domain.constant_of(key, what), domain.constant_of(item, what)) for key, item in pairs])

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return refuse_hash(self, self.class_)

    def truth(self, domain: SymbolicDomain) -> bool:
        return bool(self.items)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        match sign, left, right:
            case "|=", DictValue(), _ if domain.is_mapping(right, left.builtin_class()):
                return domain.enter_polyfill(polyfills.filled, [left, right, domain.named({})])
            case "|=", DictValue(), _:
                left.update(domain, domain.pairs_of(right, left.builtin_class()))
                return left
            case "|", DictValue(), DictValue() if left.class_ is right.class_:
                made = left.copy()
                for key, value in right.items.values():
                    made.put(domain, key, value)
                return made
            case _:
                return super().binary(domain, sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        return domain.compare_containers(sign, left, right)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return attribute_of_container(domain, self, self.class_, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        return has_attribute_of_container(self, self.class_, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        return call_from(_DICT_METHODS, domain, self, name, args, kwargs)

    # ------------------------------------------------------------------------------------------------------ items

    def length(self, domain: SymbolicDomain) -> Value:
        return ConstantValue(len(self.items))

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return [key for key, _ in self.items.values()]

    def pairs(self, domain: SymbolicDomain) -> list[tuple[Value, Value]]:
        return list(self.items.values())

    def iterate(self, domain: SymbolicDomain) -> Any:
        return _iterator_over(domain, self, self)

    def check_iterated(self, iterator: Any) -> None:
        changed = self.changed_at[iterator.changes :]
        if self.class_ is OrderedDict:
            is_at_end = 0 < len(iterator.keys) == iterator.position  # it does not look at the dict any more
            if changed and not is_at_end:
                raising(RuntimeError, "OrderedDict mutated during iteration")
        elif len(self.items) != len(iterator.keys):
            raising(RuntimeError, "dictionary changed size during iteration")
        elif changed:  # what follows depends on where the keys are in the table of CPython
            reason = GraphBreak("unsupported_operation", what="iterating while keys change", kind=self.kind)
            raise reason.restarting_at(changed[0])

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Value:
        return ConstantValue((domain.hash_key(item) in self.items) is not inverted)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        key = domain.known_key(key)
        found = self.items.get(domain.hash_key(key))
        return self.missing(domain, key) if found is None else found[1]

    def missing(self, domain: SymbolicDomain, key: Value) -> Any:
        """The result of `__missing__`."""
        raise UserRaise(KeyError, [domain.state.realize(key)])

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> None:
        self.put(domain, domain.known_key(key), item)

    def delete_item(self, domain: SymbolicDomain, key: Value) -> None:
        hashed = domain.hash_key(key)
        if hashed not in self.items:
            raise UserRaise(KeyError, [key])
        self.will_remove(domain, hashed)
        del self.items[hashed]

    # --------------------------------------------------------------------------------------------------- changing

    def will_remove(self, domain: SymbolicDomain, *keys: Any) -> None:
        """Must be called before keys are removed, or moved. keys: as in `items`."""
        domain.state.effects.will_change(self)
        self.removed.update(keys)
        self.changed_at.append(domain.state.position())

    def put(self, domain: SymbolicDomain, key: Any, value: Value) -> None:
        """`self[key] = value`. If an equal key exists, it stays and only its item changes, as in Python."""
        key = domain.state.realize(key)
        hashed = domain.hash_key(key)
        domain.state.effects.will_change(self)
        if hashed not in self.items:
            self.changed_at.append(domain.state.position())
        self.items[hashed] = (self.items[hashed][0] if hashed in self.items else key, value)

    def update(self, domain: SymbolicDomain, pairs: list[tuple[Any, Any]]) -> None:
        """`self.update(pairs)`."""
        for key, _ in pairs:
            domain.hash_key(key)  # breaks the graph or raises before anything is changed
        for key, value in pairs:
            self.put(domain, key, value)

    def copy(self) -> DictValue:
        """`self.copy()`."""
        return DictValue(dict(self.items), class_=self.class_)

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        name = emitter.named(self, self._empty(emitter))
        for key, item in self.items.values():
            emitter.line(f"{name}[{emitter.expression(key)}] = {emitter.expression(item)}")
        return name

    def _empty(self, emitter: Any) -> str:
        return "{}" if self.class_ is dict else f"{emitter.constant(self.class_)}()"

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        """Writes only the items that differ, if that gives the right order: an iterator over the dict may have begun. A key that
        was removed and added again is removed here too, because such an iterator sees that.
        """
        before, after = log.before(self), self.items
        stays = [key for key in before if key not in self.removed]
        is_in_order = [*after][: len(stays)] == stays
        if is_in_order:
            gone = [key for hashed, (key, _) in before.items() if hashed in self.removed]
            lines = [self.method_written(emitter, name, "__delitem__", emitter.expression(key)) for key in gone]
        else:
            lines = [self.method_written(emitter, name, "clear")]
        for hashed, (key, item) in after.items():
            is_kept = is_in_order and hashed in before and hashed not in self.removed
            if not is_kept or before[hashed][1] is not item:
                given = emitter.expression(key), emitter.expression(item)
                lines.append(self.method_written(emitter, name, "__setitem__", *given))
        for line in lines:
            emitter.line(line)

    def method_written(self, emitter: Any, name: str, method: str, *args: str) -> str:
        """A line that calls a method of the program's dict of this name."""
        return f"{name}.{method}({', '.join(args)})"

    @property
    def exhausted(self) -> str:
        return "{}"

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        changed = self.changed_at[iterator.changes :]
        if changed:
            raise GraphBreak("cannot_rebuild", kind="iterator over a changed dict").restarting_at(changed[0])
        over = iterator.over
        if over is self and self.holder is not None:
            if in_mro(self.holder.class_of(), "__iter__") is not self.builtin_class().__iter__:
                raise GraphBreak("cannot_rebuild", kind=f"iterator over a {self.holder.kind}")
            over = self.holder
        return advanced_by_steps(emitter, over, iterator)


class DefaultDictValue(DictValue):
    """A defaultdict. `factory` makes the item of a missing key."""

    __slots__ = ("factory",)

    def __init__(self, items: dict[Any, tuple[Value, Value]], factory: Value, source: Source | None = None) -> None:
        super().__init__(items, source, defaultdict)
        self.factory = factory

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return self.factory if name == "default_factory" else super().load_attr(domain, name)

    def missing(self, domain: SymbolicDomain, key: Value) -> Any:
        if domain.is_none(self.factory):
            return super().missing(domain, key)
        domain.hash_key(key)
        return domain.enter_polyfill(polyfills.made_for, [self, key, self.factory])

    def copy(self) -> DictValue:
        return DefaultDictValue(dict(self.items), self.factory)

    def _empty(self, emitter: Any) -> str:
        return f"{emitter.constant(defaultdict)}({emitter.expression(self.factory)})"


class FrozenDictValue(DictValue):
    """A dict as it was when the segment was entered: the `__dict__` of an object. It cannot be changed."""

    __slots__ = ()


class MappingProxyValue(FrozenDictValue):
    """A mappingproxy of the program. `refuse_changes` breaks the graph if the segment has changed the dict behind it, whose class
    is `copied_class`.
    """

    __slots__ = ("copied_class", "found", "refuse_changes")

    def __init__(
        self,
        items: dict[Any, tuple[Value, Value]],
        source: Source | None,
        refuse_changes: Callable[[], None],
        copied_class: type,
    ) -> None:
        self.refuse_changes, self.copied_class = refuse_changes, copied_class
        super().__init__(items, source, MappingProxyType)

    def copy(self) -> DictValue:
        return DictValue(dict(self.items), class_=self.copied_class)

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        self.refuse_changes()
        return self.found

    @items.setter
    def items(self, items: dict[Any, tuple[Value, Value]]) -> None:
        self.found = items


class ModulesValue(DictValue):
    """`sys.modules`, which every import changes: a name that is asked for has a guard of its own.

    read_all: gives the items, with guards on all names.
    """

    __slots__ = ("read", "read_all")

    def __init__(self, source: Source, read_all: Callable[[], dict[Any, tuple[Value, Value]]]) -> None:
        self.read: dict[Any, tuple[Value, Value]] | None = None
        self.read_all = read_all
        Value.__init__(self, source)
        self.class_, self.holder = dict, None
        self.changed_at, self.removed = [], set()

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        if self.read is None:
            self.read = self.read_all()
        return self.read

    def _one(self, domain: SymbolicDomain, key: Any) -> Any:
        """The module of a name, None if there is none; with a guard. MISSING for another key, and once all are read."""
        name = domain.state.realize(key)
        if self.read is not None or not isinstance(name, ConstantValue) or type(name.value) is not str:
            return MISSING
        assert self.source is not None
        modules = domain.state.object_of(self)
        if name.value not in modules:
            domain.state.guard(GuardKind.LACKS, self.source, name.value)
            return None
        return domain.state.wrap(modules[name.value], ItemSource(self.source, name.value))

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Value:
        found = self._one(domain, item)
        if found is MISSING:
            return super().contains(domain, item, inverted)
        return ConstantValue((found is not None) is not inverted)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        found = self._one(domain, key)
        if found is MISSING:
            return super().get_item(domain, key)
        return self.missing(domain, key) if found is None else found

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        found = self._one(domain, args[0]) if name == "get" and 1 <= len(args) <= 2 and not kwargs else MISSING
        if found is MISSING:
            return super().call_method(domain, frame, name, args, kwargs)
        default = args[1] if len(args) > 1 else ConstantValue(None)
        return default if found is None else found


class DictViewValue(Value):
    """`keys()`, `values()` or `items()` of a dict."""

    __slots__ = ("over", "which")
    operand_rank = 1

    def __init__(self, over: DictValue, which: str) -> None:
        super().__init__()
        self.over = over
        self.which = which

    @property
    def is_like_set(self) -> bool:
        return self.which != "values"

    def truth(self, domain: SymbolicDomain) -> bool:
        return bool(self.over.items)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        is_of_sets = left.is_like_set or right.is_like_set
        return domain.binary_of_sets(sign, left, right) if is_of_sets else super().binary(domain, sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        is_of_sets = left.is_like_set or right.is_like_set
        return (domain.compare_sets if is_of_sets else domain.compare_containers)(sign, left, right)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return NativeMethodValue(self, name) if name == "isdisjoint" else super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if name != "isdisjoint" or kwargs:
            unsupported(f"method {name}", self)
        return domain.set_of(set, self).call_method(domain, frame, name, args, kwargs)

    def length(self, domain: SymbolicDomain) -> Value:
        return ConstantValue(len(self.over.items))

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return self._elements()

    def _elements(self) -> list[Value]:
        match self.which:
            case "keys":
                return [key for key, _ in self.over.items.values()]
            case "values":
                return [value for _, value in self.over.items.values()]
            case _:
                return [SequenceValue(tuple, [key, value]) for key, value in self.over.items.values()]

    def iterate(self, domain: SymbolicDomain) -> Any:
        return _iterator_over(domain, self, self.over)

    def check_iterated(self, iterator: Any) -> None:
        self.over.check_iterated(iterator)

    def iterated(self, iterator: Any, index: int) -> Value:
        return self._elements()[index]  # the items may have changed since

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        match self.which:
            case "keys":
                return self.over.contains(domain, item, inverted)
            case "items":
                return self._contains_pair(domain, item, inverted)
            case _:
                return contained_in(domain, self.elements(domain), item, self, inverted)

    def _contains_pair(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        if not isinstance(item, SequenceValue) or item.class_ is not tuple or len(item.items) != 2:
            return ConstantValue(inverted)
        found = self.over.items.get(domain.hash_key(item.items[0]))
        same = False if found is None else domain.same_or_equal(found[1], item.items[1])
        return unsupported("`in`", self) if same is None else ConstantValue(same is not inverted)

    def rebuilt(self, emitter: Any) -> str:
        if self.over.holder is not None:
            method = emitter.constant(getattr(self.over.builtin_class(), self.which))
            return emitter.named(self, f"{method}({emitter.expression(self.over.holder)})")
        if isinstance(self.over, FrozenDictValue):
            return super().rebuilt(emitter)
        return emitter.named(self, f"{emitter.expression(self.over)}.{self.which}()")

    @property
    def exhausted(self) -> str:
        return f"{{}}.{self.which}()"

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        return self.over.iterator_rebuilt(emitter, iterator)


def _iterator_over(domain: SymbolicDomain, value: DictValue | DictViewValue, table: DictValue) -> Any:
    made = domain.iterator(value, value.elements(domain))
    made.keys, made.changes = list(table.items), len(table.changed_at)
    return made


# ------------------------------------------------------------------------------------------------------- methods


def _copy(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return receiver.copy()


def _get(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    found = receiver.items.get(domain.hash_key(args[0]))
    if found is not None:
        return found[1]
    return args[1] if len(args) > 1 else nothing()


def _view(which: str) -> Method:
    return lambda domain, receiver, args, kwargs: DictViewValue(receiver, which)


def _pop(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    key = domain.hash_key(args[0])
    if key in receiver.items:
        receiver.will_remove(domain, key)
        return receiver.items.pop(key)[1]
    if len(args) > 1:
        return args[1]
    raise UserRaise(KeyError, [domain.state.realize(args[0])])


def _clear(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    receiver.will_remove(domain, *receiver.items)
    receiver.items.clear()
    return nothing()


def _is_last(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """The argument `last` of popitem and move_to_end of an OrderedDict."""
    given = [*args, *kwargs.values()]
    if len(given) > 1 or kwargs.keys() - {"last"}:
        wrong("last")
    return not given or bool(domain.constant_of(given[0], "last"))


def _pop_item(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if (args or kwargs) and receiver.class_ is not OrderedDict:
        wrong("popitem")
    is_last = _is_last(domain, args, kwargs)
    if not receiver.items:
        name = "dictionary" if receiver.class_ is OrderedDict else "popitem(): dictionary"
        raising(KeyError, f"{name} is empty")
    key = next(reversed(receiver.items) if is_last else iter(receiver.items))
    receiver.will_remove(domain, key)
    return SequenceValue(tuple, list(receiver.items.pop(key)))


def _move_to_end(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if receiver.class_ is not OrderedDict:
        raising(AttributeError)
    key, is_last = domain.hash_key(args[0]), _is_last(domain, args[1:], kwargs)
    if key not in receiver.items:
        raise UserRaise(KeyError, [domain.state.realize(args[0])])
    receiver.will_remove(domain, key)
    moved = receiver.items.pop(key)
    rest = dict(receiver.items)
    if is_last:
        receiver.items[key] = moved
    else:
        receiver.items.clear()
        receiver.items |= {key: moved, **rest}
    return nothing()


def _set_default(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    key = domain.hash_key(args[0])
    if key not in receiver.items:
        receiver.put(domain, args[0], args[1] if len(args) > 1 else nothing())
    return receiver.items[key][1]


def _update(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and domain.is_mapping(args[0], receiver.builtin_class()):
        return domain.enter_polyfill(polyfills.updated_from, [receiver, args[0], domain.named(kwargs)])
    if args and domain.runs_code(args[0]):
        return domain.enter_polyfill(polyfills.updated, [receiver, args[0], domain.named(kwargs)])
    pairs = domain.pairs_of(args[0], receiver.builtin_class()) if args else []
    receiver.update(domain, [*pairs, *((ConstantValue(name), value) for name, value in kwargs.items())])
    return nothing()


def _missing(domain: SymbolicDomain, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return receiver.missing(domain, args[0])


_DICT_METHODS: dict[str, Method] = {
    "get": _get, "keys": _view("keys"), "values": _view("values"), "items": _view("items"), "pop": _pop,
    "popitem": _pop_item, "move_to_end": _move_to_end, "setdefault": _set_default, "update": _update, "copy": _copy,
    "__missing__": _missing, **COMMON_METHODS, **CHANGING_METHODS, "clear": _clear,
}  # fmt: skip
