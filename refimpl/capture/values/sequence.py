"""Tuples, lists, deques and slices.

Counterpart: torch/_dynamo/variables/lists.py
Differs: a method checks its arguments before it changes a value, so that a graph break leaves the value unchanged.
"""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, KeptSource, Source
from refimpl.capture.interpreter.concrete import BINARY
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import MethodValue, NativeMethodValue
from refimpl.capture.values.classes import MISSING, in_mro, is_named_tuple, is_struct_sequence, own_attributes
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.value import UserRaise, Value, advanced_by_steps, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

Method = Callable[[Any, Any, list[Any], dict[str, Any]], Any]
FIELD = type(vars(namedtuple("Pair", "first"))["first"])  # the class of a named tuple's fields
_MOST_ITEMS = 100_000


class SequenceValue(Value):
    """A tuple, a list, a torch.Size or a named tuple of values."""

    __slots__ = ("class_", "items")
    operand_rank = 1

    def __init__(self, class_: type, items: list[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.class_ = class_
        self.items = items

    @property
    def kind(self) -> str:
        return self.class_.__name__

    @property
    def equality_is_identity(self) -> bool:
        return True

    def kind_of_sequence(self) -> type | None:
        """The class by which sequences are compared; None if it is not known."""
        if self.class_ in (tuple, torch.Size) or is_named_tuple(self.class_):
            return tuple
        return self.class_ if self.class_ in (list, deque) else None

    def class_of(self) -> type:
        return self.class_

    def class_of_operand(self) -> type:
        return self.class_

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        if self.class_ not in (tuple, list, torch.Size):
            unsupported(what, self)
        return self.class_([domain.constant_of(item, what) for item in self.items])

    def hash_key(self, domain: SymbolicDomain) -> Any:
        if self.class_ in (tuple, torch.Size) or is_named_tuple(self.class_):
            return tuple(domain.hash_key(item) for item in self.items)
        return refuse_hash(self, self.class_)

    def truth(self, domain: SymbolicDomain) -> bool:
        return bool(self.items)

    # -------------------------------------------------------------------------------------------------- operators

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        match sign, left, right:
            case "%", ConstantValue(), SequenceValue() if isinstance(left.value, str):
                return domain.folded(BINARY[sign], [left, right], {})
            case "+=", SequenceValue(), _ if left.class_ in (list, deque):
                if domain.runs_code(right):
                    return domain.enter_polyfill(polyfills.extended_in_place, [left, right])
                left.extend(domain, right)
                return left
            case (("+" | "+="), SequenceValue(), SequenceValue()):
                return left._joined(sign, right)
            case (("*" | "*="), SequenceValue(), ConstantValue()) if type(right.value) in (int, bool):
                return left._repeated(domain, sign, right.value)
            case "*", ConstantValue(), SequenceValue() if type(left.value) in (int, bool):
                return right._repeated(domain, sign, left.value)
            case _:
                return super().binary(domain, sign, left, right)

    def _joined(self, sign: str, right: SequenceValue) -> Value:
        items = [*self.items, *right.items]
        if self.class_ is right.class_ is list:
            return SequenceValue(list, items)
        if self.class_ is right.class_ is tuple and not (self.items and right.items):
            return self if self.items else right
        if self.kind_of_sequence() is tuple and right.kind_of_sequence() is tuple:
            return SequenceValue(torch.Size if torch.Size in (self.class_, right.class_) else tuple, items)
        if isinstance(self, DequeValue) and isinstance(right, DequeValue) and self.maxlen is None:
            return DequeValue(items, None)
        if self.class_ in (list, tuple) and right.class_ in (list, tuple):
            raising(TypeError)
        unsupported(f"`{sign}`", self)

    def _repeated(self, domain: SymbolicDomain, sign: str, times: int) -> Value:
        if len(self.items) * times > _MOST_ITEMS:
            raise GraphBreak("too_many_instructions", what=_MOST_ITEMS)
        if sign == "*=" and self.class_ is list:
            domain.state.effects.will_change(self)
            self.items[:] = self.items * times
            return self
        if self.class_ not in (list, tuple, torch.Size):
            unsupported(f"`{sign}`", self)
        if self.class_ is tuple and (times == 1 or not self.items):
            return self
        return SequenceValue(self.class_, self.items * times)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        return domain.compare_containers(sign, left, right)

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        found = in_mro(self.class_, name)
        if isinstance(found, FIELD):
            return self.items[getattr(self.class_, "_fields").index(name)]
        if is_struct_sequence(self.class_) and name in self.class_.__match_args__:
            return self.items[self.class_.__match_args__.index(name)]
        way = KeptSource(self.class_, self.class_.__qualname__)
        if isinstance(found, FunctionType):
            return MethodValue(domain.state.wrap(found, AttributeSource(way, name)), self)
        if isinstance(found, property) and isinstance(found.fget, FunctionType):
            getter = domain.state.wrap(found.fget, AttributeSource(AttributeSource(way, name), "fget"))
            return domain.enter_function(getter, [self], {})
        if isinstance(found, (classmethod, staticmethod)) or name == "_fields":
            return domain.object(self.class_).attribute_of_class(domain, way, name)
        if found is MISSING and (own := self._own_attribute(domain, name)) is not None:
            return own
        return attribute_of_container(domain, self, self.class_, name)

    def _own_attribute(self, domain: SymbolicDomain, name: str) -> Any:
        """An attribute in the `__dict__` of a named tuple of the program, whose class has no `__slots__`; else None."""
        if self.source is None or not is_named_tuple(self.class_) or not self.class_.__dictoffset__:
            return None
        written = domain.state.effects.attribute(self, name)
        if written is not None:
            return written
        own = own_attributes(domain.state.object_of(self))
        if name in own:
            return domain.state.wrap(own[name], AttributeSource(self.source, name))
        domain.state.guard(GuardKind.WITHOUT, self.source, name)
        return None

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        class_ = self.class_
        is_free = in_mro(class_, name) is MISSING and class_.__setattr__ is object.__setattr__
        if self.source is None or not is_named_tuple(class_) or not class_.__dictoffset__ or not is_free:
            super().store_attr(domain, name, attribute)
        domain.state.effects.set_attribute(self, name, attribute)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        return has_attribute_of_container(self, self.class_, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        return call_from(_LIST_METHODS if self.class_ is list else _TUPLE_METHODS, domain, self, name, args, kwargs)

    # ------------------------------------------------------------------------------------------------------ items

    def length(self, domain: SymbolicDomain) -> Value:
        return ConstantValue(len(self.items))

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return list(self.items)

    def iterate(self, domain: SymbolicDomain) -> Any:
        is_plain = self.class_ in (list, tuple, torch.Size)
        return domain.iterator(self, self.items if is_plain else list(self.items))

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        return contained_in(domain, self.items, item, self, inverted)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        key = domain.known_key(key.plain_of_member(), is_constant=True)
        match key:
            case ConstantValue() if type(key.value) in (int, bool, slice):
                return self._element(key.value)
            case ConstantValue():
                raising(TypeError)
            case _:
                unsupported("an item", self)

    def _element(self, key: Any) -> Value:
        if isinstance(key, slice):
            if key.step == 0:
                raising(ValueError, "slice step cannot be zero")
            if self.class_ is tuple and key.indices(len(self.items)) == (0, len(self.items), 1):
                return self
            return SequenceValue(self.class_ if self.class_ in (list, torch.Size) else tuple, self.items[key])
        if not -len(self.items) <= key < len(self.items):
            raising(IndexError)
        return self.items[key]

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> None:
        key = domain.known_key(key)
        match key:
            case ConstantValue() if self.is_changed_at(key.value):
                self._element(key.value)  # raises IndexError if there is no such item
                domain.state.effects.will_change(self)
                self.items[key.value] = item
            case ConstantValue() if self.class_ is list and type(key.value) is slice:
                self._set_slice(domain, key.value, item)
            case _ if self.class_ is tuple:
                raising(TypeError, "'tuple' object does not support item assignment")
            case _:
                super().set_item(domain, key, item)

    def is_changed_at(self, key: Any) -> bool:
        """Whether the item at this index can be assigned or deleted."""
        return self.class_ is list and type(key) is int

    def _set_slice(self, domain: SymbolicDomain, where: slice, item: Any) -> None:
        more = domain.elements(item)
        changed = list(self.items)
        try:
            changed[where] = more
        except ValueError as error:
            raise UserRaise(ValueError, constants=error.args) from error
        domain.state.effects.will_change(self)
        self.items[:] = changed

    def delete_item(self, domain: SymbolicDomain, key: Value) -> None:
        match key:
            case ConstantValue() if self.is_changed_at(key.value) or (self.class_ is list and type(key.value) is slice):
                self._element(key.value)
                domain.state.effects.will_change(self)
                del self.items[key.value]
            case _:
                super().delete_item(domain, key)

    # -------------------------------------------------------------------------------------------------- changing

    def append(self, domain: SymbolicDomain, item: Any) -> None:
        """`value.append(item)`."""
        domain.state.effects.will_change(self)
        self.items.append(item)

    def extend(self, domain: SymbolicDomain, iterable: Any) -> None:
        """`value.extend(iterable)`, if iterating runs no code of the user's."""
        more = domain.elements(iterable)
        domain.state.effects.will_change(self)
        self.items.extend(more)
        self.keep_within(from_left=True)

    def keep_within(self, *, from_left: bool) -> None:
        """Drops surplus items of a deque with `maxlen`, from the side opposite to the one that grew."""

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        if self.class_ is list:
            name = emitter.named(self, "[]")
            if self.items:
                emitter.line(f"{name} += [{emitter.listed(self.items)}]")
            return name
        items = "(" + "".join(f"{emitter.expression(item)}, " for item in self.items) + ")"
        if self.class_ is tuple:
            return emitter.named(self, items)
        if self.class_ is torch.Size or hasattr(self.class_, "n_sequence_fields"):
            return emitter.named(self, f"{emitter.constant(self.class_)}({items})")
        if is_named_tuple(self.class_):
            return emitter.named(self, f"tuple.__new__({emitter.constant(self.class_)}, {items})")
        return super().rebuilt(emitter)

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        emitter.line(f"{name}[:] = [{emitter.listed(self.items)}]")

    @property
    def exhausted(self) -> str:
        return "[]" if self.class_ is list else "()"

    # ------------------------------------------------------------------------------------------ arguments of operators

    def as_fake(self, state: Any, what: str) -> Any:
        items = [state.fake_of(item, what) for item in self.items]
        if is_named_tuple(self.class_):
            return tuple.__new__(self.class_, items)
        if self.class_ not in (tuple, list, torch.Size):
            return super().as_fake(state, what)
        has_symbols = self.class_ is torch.Size and any(isinstance(item, torch.SymInt) for item in items)
        return tuple(items) if has_symbols else self.class_(items)

    def as_argument(self, state: Any) -> Any:
        items = [state.argument_of(item) for item in self.items]
        if is_named_tuple(self.class_):
            return tuple.__new__(self.class_, items)
        return tuple(items) if self.class_ is torch.Size else self.class_(items)


class DequeValue(SequenceValue):
    """A deque."""

    __slots__ = ("changes", "maxlen")

    def __init__(self, items: list[Value], maxlen: int | None, source: Source | None = None) -> None:
        super().__init__(deque, items, source)
        self.maxlen = maxlen
        self.changes = 0  # how often items were added, removed or rotated: an iterator must not go on after that

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        result = call_from(_DEQUE_METHODS, domain, self, name, args, kwargs)
        self.changes += name in _MOVING
        return result

    def extend(self, domain: SymbolicDomain, iterable: Any) -> None:
        more = domain.elements(iterable)
        super().extend(domain, SequenceValue(tuple, list(more)))
        self.changes += bool(more)

    def delete_item(self, domain: SymbolicDomain, key: Value) -> None:
        super().delete_item(domain, key)
        self.changes += 1

    def iterate(self, domain: SymbolicDomain) -> Any:
        made = super().iterate(domain)
        made.items, made.changes = self.items, self.changes
        return made

    def _element(self, key: Any) -> Value:
        if isinstance(key, slice):
            raising(TypeError, "sequence index must be integer, not 'slice'")
        return super()._element(key)

    def is_changed_at(self, key: Any) -> bool:
        return type(key) is int

    def keep_within(self, *, from_left: bool) -> None:
        if self.maxlen is not None:
            surplus = max(0, len(self.items) - self.maxlen)
            self.items[:] = self.items[surplus:] if from_left else self.items[: len(self.items) - surplus]

    def check_iterated(self, iterator: Any) -> None:
        if self.changes != iterator.changes:
            raising(RuntimeError, "deque mutated during iteration")

    def rebuilt(self, emitter: Any) -> str:
        name = emitter.named(self, f"{emitter.constant(deque)}((), {self.maxlen})")
        emitter.line(f"{name}.extend([{emitter.listed(self.items)}])")
        return name

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        if not self.changes:  # only items were assigned, which an iterator over the deque may see
            for index, item in enumerate(self.items):
                emitter.line(f"{name}[{index}] = {emitter.expression(item)}")
            return
        for line in (f"items = [{emitter.listed(self.items)}]", f"{name}.clear()", f"{name}.extend(items)"):
            emitter.line(line)

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        if self.changes != iterator.changes:
            raise GraphBreak("cannot_rebuild", kind="iterator over a changed deque")
        return advanced_by_steps(emitter, self, iterator)


class SliceValue(Value):
    """A slice that has a part which is no constant."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Value, ...]) -> None:
        super().__init__()
        self.parts = parts

    def class_of(self) -> type:
        return slice

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, f"slice({emitter.listed(self.parts)})")

    def as_fake(self, state: Any, what: str) -> Any:
        return slice(*(state.fake_of(part, what) for part in self.parts))

    def as_argument(self, state: Any) -> Any:
        return slice(*(state.argument_of(part) for part in self.parts))


# ---------------------------------------------------------------------------------------------- what containers share


def refuse_hash(value: Value, class_: type) -> Any:
    """Raises the program's TypeError if the class is unhashable."""
    if class_.__hash__ is None:
        raising(TypeError, f"unhashable type: '{class_.__name__}'")
    unsupported("a key", value)


def attribute_of_container(domain: SymbolicDomain, value: Value, class_: type, name: str) -> Any:
    """An attribute of a builtin container: `__class__`, or a method."""
    if name == "__class__":
        return domain.object(class_)
    return NativeMethodValue(value, name) if hasattr(class_, name) else raising(AttributeError)


def has_attribute_of_container(value: Value, class_: type, name: str) -> bool:
    """`hasattr` of a builtin container."""
    if class_.__module__ not in ("builtins", "collections"):
        unsupported("hasattr()", value)
    return hasattr(class_, name)


def contained_in(
    domain: SymbolicDomain, elements: Sequence[Value], item: Value, container: Value, inverted: bool
) -> Any:
    """`item in container`, whose elements these are."""
    for element in elements:
        same = domain.same_or_equal(element, item)
        if same is None:
            items = container if isinstance(container, SequenceValue) else SequenceValue(list, list(elements))
            return domain.enter_polyfill(polyfills.contained, [items, item, ConstantValue(not inverted)])
        if same:
            return ConstantValue(not inverted)
    return ConstantValue(inverted)


def call_from(
    methods: Mapping[str, Method],
    domain: SymbolicDomain,
    receiver: Value,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a container's method, looked up in the methods of its kind."""
    method = methods.get(name)
    if method is None and not kwargs and len(args) == 1 and (name in _OPERATORS or name in _COMPARISONS):
        return by_operator(domain, receiver, name, args[0])
    if method is None or (kwargs and name not in _WITH_KEYWORDS):
        unsupported(f"method {name}", receiver)
    limits = _COUNTS.get(name)
    if limits is not None and not limits[0] <= len(args) <= limits[1]:
        wrong(name)
    return method(domain, receiver, args, kwargs)


def by_operator(domain: SymbolicDomain, receiver: Value, name: str, other: Any) -> Any:
    """`receiver.__add__(other)` and the like, for operands of one class, for which it is the operator."""
    other = domain.state.realize(other)
    if receiver.class_of() is not other.class_of():
        unsupported(f"method {name}", receiver)
    if name in _COMPARISONS:
        return domain.compare(_COMPARISONS[name], receiver, other)
    return domain.binary(_OPERATORS[name], receiver, other)


def nothing() -> Value:
    """The value None."""
    return ConstantValue(None)


def wrong(what: str) -> Any:
    """Breaks the graph before a method call with arguments that the method does not accept."""
    raise GraphBreak("op_raises_on_fake", what=what, error="an exception")


def _length(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.length(receiver)


def _contains(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.contains(args[0], receiver, False)


def _get_item(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.get_item(receiver, args[0])


def _set_item(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    entered = domain.set_item(receiver, args[0], args[1])
    return unsupported("method __setitem__", receiver) if entered is not None else nothing()


def _delete_item(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    entered = domain.delete_item(receiver, args[0])
    return unsupported("method __delitem__", receiver) if entered is not None else nothing()


def _iterator(domain: SymbolicDomain, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.get_iter(receiver)


def clear(domain: SymbolicDomain, receiver: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`receiver.clear()`."""
    domain.state.effects.will_change(receiver)
    receiver.items.clear()
    return nothing()


# ------------------------------------------------------------------------------------------------------ methods


def _index(domain: SymbolicDomain, value: Any) -> int:
    index = domain.constant_of(value, "an index")
    return int(index) if type(index) in (int, bool) else wrong("an index")


def _append(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    receiver.append(domain, args[0])
    receiver.keep_within(from_left=True)
    return nothing()


def _extend(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if domain.runs_code(args[0]):
        return domain.enter_polyfill(polyfills.extended, [receiver, args[0]])
    receiver.extend(domain, args[0])
    return nothing()


def _insert(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    index = _index(domain, args[0])
    if isinstance(receiver, DequeValue) and receiver.maxlen is not None and len(receiver.items) >= receiver.maxlen:
        raising(IndexError, "deque already at its maximum size")
    domain.state.effects.will_change(receiver)
    receiver.items.insert(index, args[1])
    return nothing()


def _pop(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    index = _index(domain, args[0]) if args else -1
    if not -len(receiver.items) <= index < len(receiver.items):
        if isinstance(receiver, DequeValue):
            raising(IndexError, "pop from an empty deque")
        raising(IndexError, "pop index out of range" if receiver.items else "pop from empty list")
    domain.state.effects.will_change(receiver)
    return receiver.items.pop(index)


def _reverse(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.reverse()
    return nothing()


def _copy_of_list(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return SequenceValue(list, list(receiver.items))


def _place(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any]) -> Any:
    """The index of the first equal item; None if there is none; a frame, if the comparison runs code of the user's."""
    for index, item in enumerate(receiver.items):
        same = domain.same_or_equal(item, args[0])
        if same is None:
            return domain.enter_polyfill(polyfills.index_of, [receiver, args[0]])
        if same:
            return index
    return None


def _index_of(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    begin = _index(domain, args[1]) if len(args) > 1 else 0
    end = _index(domain, args[2]) if len(args) > 2 else len(receiver.items)
    places = range(len(receiver.items))[begin:end]
    for index in places:
        same = domain.same_or_equal(receiver.items[index], args[0])
        if same is None and len(args) == 1 and receiver.class_ in (list, tuple):
            return domain.enter_polyfill(polyfills.index_of, [receiver, args[0]])
        if same is None:
            unsupported("method index", receiver)
        if same:
            return ConstantValue(index)
    raising(ValueError)


def _count_of(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = [domain.same_or_equal(item, args[0]) for item in receiver.items]
    if None in found:
        return domain.enter_polyfill(polyfills.count_of, [receiver, args[0]])
    return ConstantValue(found.count(True))


def _remove(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    place = _place(domain, receiver, args)
    if place is None:
        raising(ValueError, f"{receiver.class_.__name__}.remove(x): x not in {receiver.class_.__name__}")
    if type(place) is not int:
        return domain.enter_polyfill(polyfills.removed, [receiver, args[0]])
    domain.state.effects.will_change(receiver)
    del receiver.items[place]
    return nothing()


def _sort(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs.keys() - {"key", "reverse"}:
        wrong("sort")
    key = kwargs.get("key", nothing())
    if not domain.is_none(key):
        is_reversed = kwargs.get("reverse", ConstantValue(False))
        return domain.enter_polyfill(polyfills.sorted_in_place, [receiver, key, is_reversed])
    ordered = in_order(domain, receiver.items, receiver.items, kwargs.get("reverse"))
    domain.state.effects.will_change(receiver)
    receiver.items[:] = ordered
    return nothing()


def in_order(domain: SymbolicDomain, items: list[Value], keys: list[Value], reverse: Any = None) -> list[Value]:
    """The items sorted by their keys, which have to be constants. Breaks the graph for other keys."""
    is_reversed = False if reverse is None else domain.constant_of(reverse, "sorted")
    plain = [domain.constant_of(key, "sorted") for key in keys]
    try:
        order = sorted(range(len(plain)), key=plain.__getitem__, reverse=bool(is_reversed))
    except TypeError as error:
        raise UserRaise(TypeError, constants=error.args) from error
    return [items[index] for index in order]


def _product(domain: SymbolicDomain, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if receiver.class_ is not torch.Size:
        unsupported("method numel", receiver)
    total: Any = ConstantValue(1)
    for item in receiver.items:
        total = domain.binary("*", total, item)
    return total


def _append_left(domain: SymbolicDomain, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.insert(0, args[0])
    receiver.keep_within(from_left=False)
    return nothing()


def _extend_left(domain: SymbolicDomain, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    for item in domain.elements(args[0]):
        _append_left(domain, receiver, [item], kwargs)
    return nothing()


def _pop_left(domain: SymbolicDomain, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return _pop(domain, receiver, [ConstantValue(0)], kwargs)


def _rotate(domain: SymbolicDomain, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    steps = _index(domain, args[0]) if args else 1
    rotated = deque(receiver.items)
    rotated.rotate(steps)
    domain.state.effects.will_change(receiver)
    receiver.items[:] = rotated
    return nothing()


def _copy_of_deque(domain: SymbolicDomain, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return DequeValue(list(receiver.items), receiver.maxlen)


COMMON_METHODS: dict[str, Method] = {
    "__len__": _length, "__contains__": _contains, "__getitem__": _get_item, "__iter__": _iterator,
}  # fmt: skip
CHANGING_METHODS: dict[str, Method] = {"clear": clear, "__setitem__": _set_item, "__delitem__": _delete_item}
_TUPLE_METHODS: dict[str, Method] = {"index": _index_of, "count": _count_of, "numel": _product, **COMMON_METHODS}
_LIST_METHODS: dict[str, Method] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "reverse": _reverse, "copy": _copy_of_list,
    "index": _index_of, "count": _count_of, "remove": _remove, "sort": _sort, **COMMON_METHODS, **CHANGING_METHODS,
}  # fmt: skip
_DEQUE_METHODS: dict[str, Method] = {
    "append": _append, "appendleft": _append_left, "extend": _extend, "extendleft": _extend_left, "insert": _insert,
    "pop": lambda domain, receiver, args, kwargs: wrong("pop") if args else _pop(domain, receiver, args, kwargs),
    "popleft": _pop_left, "rotate": _rotate, "reverse": _reverse, "copy": _copy_of_deque, "index": _index_of,
    "count": _count_of, "remove": _remove, **COMMON_METHODS, **CHANGING_METHODS,
}  # fmt: skip
_OPERATORS = {
    "__add__": "+",
    "__iadd__": "+=",
    "__or__": "|",
    "__ior__": "|=",
    "__and__": "&",
    "__sub__": "-",
    "__xor__": "^",
}
_COMPARISONS = {"__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_MOVING = frozenset(["append", "appendleft", "extendleft", "pop", "popleft", "insert", "remove", "clear", "rotate"])
_WITH_KEYWORDS = frozenset(["sort", "update", "popitem", "move_to_end"])
_COUNTS = {
    "append": (1, 1), "appendleft": (1, 1), "extend": (1, 1), "extendleft": (1, 1), "insert": (2, 2), "remove": (1, 1),
    "popleft": (0, 0), "rotate": (0, 1), "reverse": (0, 0), "clear": (0, 0), "copy": (0, 0), "index": (1, 3), "count": (1, 1),
    "get": (1, 2), "setdefault": (1, 2), "update": (0, 1), "sort": (0, 0), "__len__": (0, 0), "__contains__": (1, 1),
    "__getitem__": (1, 1), "__setitem__": (2, 2), "__delitem__": (1, 1),
    "__missing__": (1, 1), "keys": (0, 0), "values": (0, 0), "items": (0, 0),
    "move_to_end": (1, 2), "pop": (0, 2), "popitem": (0, 1), "__iter__": (0, 0), "numel": (0, 0),
}  # fmt: skip
