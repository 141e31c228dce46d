"""The concrete domain: values are Python's own objects, and a program does what it does in CPython.

It runs the instruction at a graph break. The tests of the loop and of the bytecode use it as well.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import CellType
from typing import Any, NoReturn

from refimpl.capture.interpreter import native_helpers
from refimpl.capture.interpreter.concrete_calls import ConcreteCalls
from refimpl.capture.interpreter.concrete_exceptions import ConcreteExceptions
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.interpreter.signals import Enter, Exhausted

UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert, "not": operator.not_,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "&": operator.and_, "//": operator.floordiv, "<<": operator.lshift, "@": operator.matmul,
    "*": operator.mul, "%": operator.mod, "|": operator.or_, "**": operator.pow, ">>": operator.rshift, "-": operator.sub,
    "/": operator.truediv, "^": operator.xor,
    "+=": operator.iadd, "&=": operator.iand, "//=": operator.ifloordiv, "<<=": operator.ilshift, "@=": operator.imatmul,
    "*=": operator.imul, "%=": operator.imod, "|=": operator.ior, "**=": operator.ipow, ">>=": operator.irshift,
    "-=": operator.isub, "/=": operator.itruediv, "^=": operator.ixor,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CONVERT: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}
# Bits of type.__flags__ that make a class a mapping or a sequence for `match`
_PATTERN_FLAGS = {"mapping": 1 << 6, "sequence": 1 << 5}
_OLD_NAMES = sys.version_info < (3, 11)


class ConcreteDomain(ConcreteCalls, ConcreteExceptions):
    """Values are objects."""

    # ------------------------------------------------------------------------------------------ constants and operators

    def constant(self, value: Any) -> Any:
        return value

    def truth(self, value: Any) -> bool | Enter:
        return bool(value)

    def is_none(self, value: Any) -> bool:
        return value is None

    def unary(self, sign: str, value: Any) -> Any:
        return UNARY[sign](value)

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        return BINARY[sign](left, right)

    def compare(self, sign: str, left: Any, right: Any) -> Any:
        return COMPARE[sign](left, right)

    def identical(self, left: Any, right: Any, inverted: bool) -> Any:
        return (left is right) is not inverted

    def contains(self, item: Any, container: Any, inverted: bool) -> Any:
        return operator.contains(container, item) is not inverted

    # ------------------------------------------------------------------------------------------------ attributes, items

    def load_attr(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        setattr(value, name, attribute)

    def delete_attr(self, value: Any, name: str) -> Enter | None:
        delattr(value, name)

    def get_item(self, container: Any, key: Any) -> Any:
        return container[key]

    def set_item(self, container: Any, key: Any, item: Any) -> Enter | None:
        container[key] = item

    def delete_item(self, container: Any, key: Any) -> Enter | None:
        del container[key]

    # ----------------------------------------------------------------------------------------------- containers, strings

    def build(self, kind: str, items: list[Any]) -> Any:
        match kind:
            case "tuple":
                return tuple(items)
            case "list":
                return items
            case "set":
                return {*items}
            case "dict":
                made: dict[Any, Any] = {}
                for index in range(0, len(items), 2):
                    made[items[index]] = items[index + 1]
                return made
            case "slice":
                return slice(*items)
            case "string":
                return "".join(items)
            case _:
                raise AssertionError(kind)

    def grow(self, how: str, container: Any, *items: Any) -> Enter | None:
        match how:
            case "append":
                container.append(items[0])
            case "add":
                container.add(items[0])
            case "put":
                container[items[0]] = items[1]
            case "extend":
                container.extend(native_helpers.spread(items[0]))
            case "update_set":
                container.update(items[0])
            case "update_dict":
                container.update(native_helpers.spread_mapping(items[0]))
            case "merge":
                self._merge(container, *items)
            case _:
                raise AssertionError(how)

    def _merge(self, keywords: dict[Any, Any], mapping: Any, function: Any) -> None:
        """Merges `**mapping` into the keywords of a call, and raises the call's errors."""
        try:
            more = native_helpers.spread_mapping(mapping)
        except TypeError:
            native_helpers.call_with_mapping(function, mapping)
            raise
        if not keywords.keys().isdisjoint(more):
            native_helpers.call_with_both(function, keywords, more)
        keywords.update(more)

    def const_keys(self, keys: Any) -> list[Any]:
        return list(keys)

    def list_to_tuple(self, value: Any) -> Any:
        return tuple(value)

    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        return native_helpers.unpacking(before, after)(value)

    def convert(self, kind: str, value: Any) -> Any:
        return _CONVERT[kind](value)

    def format(self, value: Any, spec: Any) -> Any:
        return format(value, "" if spec is None else spec)

    # ------------------------------------------------------------------------------------------------------------ iteration

    def get_iter(self, value: Any) -> Any:
        return iter(value)

    def next(self, iterator: Any) -> Any:
        try:
            return next(iterator)
        except StopIteration as stop:
            return Exhausted(stop.value)

    def send(self, receiver: Any, value: Any) -> Any:
        try:
            return next(receiver) if value is None else receiver.send(value)
        except StopIteration as stop:
            return Exhausted(stop.value)

    # ------------------------------------------------------------------------------------------------ variables and names

    def make_cell(self, value: Any) -> Any:
        return CellType() if value is UNBOUND else CellType(value)

    def cell_value(self, cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return UNBOUND

    def set_cell(self, cell: Any, value: Any) -> None:
        if value is UNBOUND:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def load_global(self, frame: FrameState, name: str) -> Any:
        value = self.load_from(frame.globals, name)
        return self.load_from(frame.builtins, name) if value is UNBOUND else value

    def store_global(self, frame: FrameState, name: str, value: Any) -> None:
        if value is UNBOUND:
            del frame.globals[name]
        else:
            frame.globals[name] = value

    def load_from(self, mapping: Any, name: str) -> Any:
        if type(mapping) is dict:
            return mapping.get(name, UNBOUND)
        try:
            return mapping[name]
        except KeyError:
            return UNBOUND

    def store_name(self, frame: FrameState, name: str, value: Any) -> None:
        if value is UNBOUND:
            del frame.names[name]
        else:
            frame.names[name] = value

    def local_names(self, frame: FrameState) -> Any:
        return frame.names

    def names(self, frame: FrameState, slot: int, value: Any) -> None:
        """Nothing: an object has no name."""

    def drops(self, frame: FrameState, slot: int) -> None:
        """Nothing: the object ends where it would end in eager."""

    def unbound(self, kind: str, name: str) -> NoReturn:
        match kind, _OLD_NAMES:
            case "name", _:
                raise NameError(f"name '{name}' is not defined", name=name)
            case "local", True:
                raise UnboundLocalError(f"local variable '{name}' referenced before assignment")
            case "local", False:
                raise UnboundLocalError(
                    f"cannot access local variable '{name}' where it is not associated with a value"
                )
            case "free", True:
                message = f"free variable '{name}' referenced before assignment in enclosing scope"
            case _:
                message = (
                    f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
                )
        raise NameError(message, name=name)

    # ----------------------------------------------------------------------------------------------------------- patterns

    def is_pattern(self, kind: str, value: Any) -> bool:
        return bool(type(value).__flags__ & _PATTERN_FLAGS[kind])

    def match_keys(self, mapping: Any, keys: Any) -> Any:
        seen: set[Any] = set()
        missing = object()
        values: list[Any] = []
        for key in keys:
            if key in seen:
                raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
            seen.add(key)
            value = mapping.get(key, missing)
            if value is missing:
                return None
            values.append(value)
        return tuple(values)

    def match_class(self, subject: Any, kind: Any, positional: int, names: Any) -> Any:
        return native_helpers.class_pattern(positional, names)(subject, kind)

    def length(self, value: Any) -> Any:
        return len(value)

    def without_keys(self, mapping: Any, keys: Any) -> Any:
        rest = dict(mapping)
        for key in keys:
            del rest[key]
        return rest
