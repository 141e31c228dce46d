"""Iterators over the segment's values.

Counterpart: torch/_dynamo/variables/iter.py, lists.py ListIteratorVariable
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


_WITH_ITERATORS = (list, tuple, deque, dict, OrderedDict, set, frozenset)  # each has a class of iterators of its own


class AnyIteratorValue(Value):
    """The base of all iterators for which `next()` is known."""

    __slots__ = ()

    @property
    def is_iterator(self) -> bool:
        return True

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        if name in ("__next__", "__iter__"):
            return NativeMethodValue(self, name)
        return super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        match name, len(args):
            case "__next__", 0 if not kwargs:
                return domain.enter_polyfill(polyfills.next_of, [self])
            case "__iter__", 0 if not kwargs:
                return self
            case _:
                unsupported(f"method {name}", self)

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        return domain.enter_polyfill(polyfills.contained, [self, item, ConstantValue(not inverted)])

    def iterate(self, domain: SymbolicDomain) -> Any:
        return self


class IteratorValue(AnyIteratorValue):
    """An iterator over a sequence, dict or range. `position` is the number of items taken."""

    __slots__ = ("changes", "is_exhausted", "items", "keys", "over", "position")

    def __init__(self, over: Value, items: list[Value]) -> None:
        super().__init__()
        self.over = over
        self.items = items  # for a list, the list's own items, so that later changes are seen
        self.position = 0
        self.keys: list[Any] = []  # the dict's keys when the iterator was made
        self.changes = 0  # how often keys had been added or removed by then
        self.is_exhausted = False

    def class_of(self) -> type:
        if isinstance(self.over, ConstantValue):
            return type(iter(self.over.value))
        class_ = getattr(self.over, "class_", None)
        return type(iter(class_())) if class_ in _WITH_ITERATORS else super().class_of()

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return _rest(domain, self)

    def next(self, domain: SymbolicDomain) -> Any:
        domain.taken.append((self, self.position, self.is_exhausted))
        if not self.is_exhausted:
            self.over.check_iterated(self)
        if self.is_exhausted or self.position >= len(self.items):
            self.is_exhausted = True  # an exhausted iterator stays exhausted when its list grows
            return Exhausted()
        self.position += 1
        return self.over.iterated(self, self.position - 1)

    def untake(self, position: int, is_exhausted: bool) -> None:
        """Restores the iterator, because an instruction that breaks the graph runs again."""
        self.position, self.is_exhausted = position, is_exhausted

    def rebuilt(self, emitter: Any) -> str:
        if self.is_exhausted:
            return emitter.named(self, f"iter({self.over.exhausted})")
        return self.over.iterator_rebuilt(emitter, self)


class FoundIteratorValue(IteratorValue):
    """An iterator of the program over a list, tuple or range. `position` counts the items that the segment takes.

    Its list must not change until it is exhausted.
    """

    __slots__ = ("of",)

    def __init__(self, items: list[Value], of: SequenceValue | None, source: Source) -> None:
        super().__init__(SequenceValue(tuple, items), items)
        self.of = of  # the list, if it is one
        self.source = source

    def class_of(self) -> type:
        return unsupported("type()", self) if self.of is None else type(iter([]))


class ReversedValue(IteratorValue):
    """`reversed(list)`. The list must not change until it is exhausted."""

    __slots__ = ("of",)

    def __init__(self, of: SequenceValue) -> None:
        items = of.items[::-1]
        super().__init__(SequenceValue(list, items), items)
        self.of = of

    def class_of(self) -> type:
        return type(reversed([]))

    def rebuilt(self, emitter: Any) -> str:
        if self.is_exhausted:
            return super().rebuilt(emitter)
        name = emitter.named(self, f"reversed({emitter.expression(self.of)})")
        emitter.line(f"{name}.__setstate__({len(self.items) - 1 - self.position})")
        return name


class CombinedIteratorValue(AnyIteratorValue):
    """`enumerate` or `zip` over iterators of the segment."""

    __slots__ = ("class_", "count", "parts")

    def __init__(self, class_: type, parts: list[Value], count: int = 0) -> None:
        super().__init__()
        self.class_ = class_
        self.parts = parts
        self.count = count  # the next number of `enumerate`

    @property
    def kind(self) -> str:
        return self.class_.__name__

    def class_of(self) -> type:
        return self.class_

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return _rest(domain, self)

    def next(self, domain: SymbolicDomain) -> Any:
        found = []
        for part in self.parts:
            item = domain.next(part)
            if isinstance(item, Enter):
                unsupported("next() of parts", part)
            if isinstance(item, Exhausted):
                return item
            found.append(item)
        if self.class_ is enumerate:
            domain.taken.append((self, self.count, False))
            found.insert(0, ConstantValue(self.count))
            self.count += 1
        return SequenceValue(tuple, found)

    def untake(self, count: int, is_exhausted: bool) -> None:
        """Restores the counter, because an instruction that breaks the graph runs again."""
        self.count = count

    def rebuilt(self, emitter: Any) -> str:
        count = f", {self.count}" if self.class_ is enumerate else ""
        return emitter.named(self, f"{self.class_.__name__}({emitter.listed(self.parts)}{count})")


def _rest(domain: SymbolicDomain, iterator: Value) -> list[Value]:
    found = []
    while not isinstance(item := iterator.next(domain), Exhausted):
        found.append(item)
    return found
