"""Finds what is reachable from values, and whether it has changed since a snapshot.

Counterpart: torch/_dynamo/side_effects.py check_allowed_side_effect; variables/base.py VariableTracker.visit
Differs: objects that the function of a higher-order operator must not change are compared with their former state, whoever
changed them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from types import MemberDescriptorType
from typing import Any

from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.state.side_effects import SideEffects
from refimpl.capture.values import NumberValue, TensorValue, Value

# Slots with objects of the program, the graph or the shape env, and slots that are not part of a value's content.
_OPAQUE = frozenset(
    ["class_", "code", "enter", "exit", "fake", "globals", "is_read", "node", "number", "object", "order", "raised_at",
     "real", "recipe", "source", "value"]
)  # fmt: skip
_OF_FRAMES = ("offset", "slots", "stack", "handled", "is_done")
_PLAIN = (int, str, bool, type(None))


@functools.cache
def _slots_of(class_: type) -> tuple[str, ...]:
    slots = (slot for base in class_.__mro__ for slot in base.__dict__.get("__slots__", ()))
    fields = (slot for slot in slots if isinstance(inspect.getattr_static(class_, slot), MemberDescriptorType))
    return tuple(slot for slot in fields if slot not in _OPAQUE)


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Value):
        yield from (getattr(thing, slot) for slot in _slots_of(type(thing)))
    elif isinstance(thing, FrameState):
        yield from (getattr(thing, name) for name in _OF_FRAMES)
    elif isinstance(thing, dict):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set)):
        yield from thing


def reachable(roots: Iterable[Any]) -> list[Any]:
    """The reachable values, frames and containers, each once, before the things they contain."""
    found: dict[int, Any] = {}
    waiting = [*roots][::-1]
    while waiting:
        thing = waiting.pop()
        if id(thing) in found or not isinstance(thing, (Value, FrameState, dict, list, tuple, set)):
            continue
        found[id(thing)] = thing
        waiting += [*_parts(thing)][::-1]
    return [*found.values()]


def leaves(roots: Iterable[Any]) -> list[TensorValue | NumberValue]:
    """The reachable tensors and numbers."""
    return [thing for thing in reachable(roots) if isinstance(thing, (TensorValue, NumberValue))]


class Snapshot:
    """The state of everything reachable from these values and from the segment's side effects."""

    def __init__(self, roots: Iterable[Any], effects: SideEffects) -> None:
        self._effects = effects
        self._count = effects.count
        written = [*effects.contents(), *effects.attributes(), *(new for _, _, new in effects.globals())]
        self._contents = [(thing, _content(thing)) for thing in reachable([*roots, *written])]

    def changed(self) -> str | None:
        """The kind of a value that has changed; None if there is none."""
        for thing, content in self._contents:
            if not _is_same(content, _content(thing)):
                return thing.kind if isinstance(thing, Value) else "container"
        return None if self._effects.count == self._count else "an object that was there before"


def _content(thing: Any) -> tuple[Any, ...]:
    return tuple(_parts(thing)) if not isinstance(thing, set) else (len(thing),)


def _is_same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return len(left) == len(right) and all(
        a is b or (type(a) in _PLAIN and type(a) is type(b) and a == b) for a, b in zip(left, right, strict=True)
    )
