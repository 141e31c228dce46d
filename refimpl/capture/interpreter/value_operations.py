"""Operators, attributes, items, containers, strings, iteration, patterns: the operands are replaced by the domain's result."""

from __future__ import annotations

from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.signals import Enter, Exhausted


def put(frame: FrameState, value: Any) -> Enter | None:
    """Pushes the result of an instruction, or returns the frame that will."""
    if type(value) is Enter:
        return value.for_(Then.PUSH)
    frame.stack.append(value)
    return None


def _drop(entered: Enter | None) -> Enter | None:
    """Ends an instruction without result, or returns the frame that will."""
    return None if entered is None else entered.for_(Then.DROP)


def _unary(domain: Domain, frame: FrameState, sign: str) -> Enter | None:
    return put(frame, domain.unary(sign, frame.stack.pop()))


def _binary(domain: Domain, frame: FrameState, sign: str) -> Enter | None:
    right = frame.stack.pop()
    return put(frame, domain.binary(sign, frame.stack.pop(), right))


def _compare(domain: Domain, frame: FrameState, sign: str) -> Enter | None:
    right = frame.stack.pop()
    return put(frame, domain.compare(sign, frame.stack.pop(), right))


def _is(domain: Domain, frame: FrameState, inverted: bool) -> None:
    right = frame.stack.pop()
    frame.stack.append(domain.identical(frame.stack.pop(), right, inverted))


def _contains(domain: Domain, frame: FrameState, inverted: bool) -> Enter | None:
    container = frame.stack.pop()
    return put(frame, domain.contains(frame.stack.pop(), container, inverted))


# ------------------------------------------------------------------------------------------------------ attributes, items


def _load_attr(domain: Domain, frame: FrameState, name: str) -> Enter | None:
    return put(frame, domain.load_attr(frame.stack.pop(), name))


def _store_attr(domain: Domain, frame: FrameState, name: str) -> Enter | None:
    value = frame.stack.pop()
    return _drop(domain.store_attr(value, name, frame.stack.pop()))


def _delete_attr(domain: Domain, frame: FrameState, name: str) -> Enter | None:
    return _drop(domain.delete_attr(frame.stack.pop(), name))


def _load_super_attr(domain: Domain, frame: FrameState, arg: tuple[str, bool]) -> Enter | None:
    name, given = arg
    super_, class_, self_ = _take(frame, 3)
    return put(frame, domain.load_super_attr(frame, super_, class_, self_, name, given))


def _binary_subscr(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    key = frame.stack.pop()
    return put(frame, domain.get_item(frame.stack.pop(), key))


def _store_subscr(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    item, container, key = _take(frame, 3)
    return _drop(domain.set_item(container, key, item))


def _delete_subscr(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    container, key = _take(frame, 2)
    return _drop(domain.delete_item(container, key))


# ----------------------------------------------------------------------------------------------------- containers, strings


def _take(frame: FrameState, count: int) -> list[Any]:
    """Pops the topmost values, lowest first."""
    if not count:
        return []
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken


def _build(kind: str, per_item: int = 1) -> Any:
    def operation(domain: Domain, frame: FrameState, count: int) -> None:
        frame.stack.append(domain.build(kind, _take(frame, per_item * count)))

    return operation


def _build_const_key_map(domain: Domain, frame: FrameState, count: int) -> None:
    keys = domain.const_keys(frame.stack.pop())
    values = _take(frame, count)
    frame.stack.append(domain.build("dict", [item for pair in zip(keys, values, strict=True) for item in pair]))


def _grow(how: str) -> Any:
    def operation(domain: Domain, frame: FrameState, depth: int) -> Enter | None:
        item = frame.stack.pop()
        return _drop(domain.grow(how, frame.stack[-depth], item))

    return operation


def _map_add(domain: Domain, frame: FrameState, depth: int) -> Enter | None:
    key, value = _take(frame, 2)
    return _drop(domain.grow("put", frame.stack[-depth], key, value))


def _dict_merge(domain: Domain, frame: FrameState, depth: int) -> Enter | None:
    mapping = frame.stack.pop()
    return _drop(domain.grow("merge", frame.stack[-depth], mapping, frame.stack[-depth - 2]))


def _list_to_tuple(domain: Domain, frame: FrameState, arg: Any) -> None:
    frame.stack.append(domain.list_to_tuple(frame.stack.pop()))


def _unpack_sequence(domain: Domain, frame: FrameState, count: int) -> Enter | None:
    return _unpack_ex(domain, frame, (count, None))


def _unpack_ex(domain: Domain, frame: FrameState, arg: tuple[int, int | None]) -> Enter | None:
    found = domain.unpack(frame.stack.pop(), *arg)
    if isinstance(found, Enter):  # the frame returns a sequence, which the instruction then unpacks
        frame.offset -= 1
        return found.for_(Then.PUSH)
    frame.stack.extend(reversed(found))
    return None


def _convert(domain: Domain, frame: FrameState, kind: str) -> Enter | None:
    return put(frame, domain.convert(kind, frame.stack.pop()))


def _format(domain: Domain, frame: FrameState, has_spec: bool) -> Enter | None:
    spec = frame.stack.pop() if has_spec else None
    return put(frame, domain.format(frame.stack.pop(), spec))


# ---------------------------------------------------------------------------------------------------------------- iteration


def _get_iter(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    return put(frame, domain.get_iter(frame.stack.pop()))


def _for_iter(domain: Domain, frame: FrameState, target: int) -> Enter | None:
    item = domain.next(frame.stack[-1])
    if type(item) is Exhausted:
        frame.stack.pop()
        frame.offset = target
        return None
    return item.for_(Then.ITERATE) if type(item) is Enter else put(frame, item)


# ----------------------------------------------------------------------------------------------------------------- patterns


def _is_pattern(kind: str) -> Any:
    def operation(domain: Domain, frame: FrameState, arg: Any) -> None:
        frame.stack.append(domain.constant(domain.is_pattern(kind, frame.stack[-1])))

    return operation


def _match_keys(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    return put(frame, domain.match_keys(frame.stack[-2], frame.stack[-1]))


def _match_class(domain: Domain, frame: FrameState, positional: int) -> Enter | None:
    subject, kind, names = _take(frame, 3)
    return put(frame, domain.match_class(subject, kind, positional, names))


def _get_len(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    return put(frame, domain.length(frame.stack[-1]))


def _dict_without_keys(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    keys = frame.stack.pop()
    return put(frame, domain.without_keys(frame.stack[-1], keys))


VALUE_OPERATIONS = {
    Op.UNARY: _unary,
    Op.BINARY: _binary,
    Op.COMPARE: _compare,
    Op.IS: _is,
    Op.CONTAINS: _contains,
    Op.LOAD_ATTR: _load_attr,
    Op.STORE_ATTR: _store_attr,
    Op.DELETE_ATTR: _delete_attr,
    Op.LOAD_SUPER_ATTR: _load_super_attr,
    Op.BINARY_SUBSCR: _binary_subscr,
    Op.STORE_SUBSCR: _store_subscr,
    Op.DELETE_SUBSCR: _delete_subscr,
    Op.BUILD_TUPLE: _build("tuple"),
    Op.BUILD_LIST: _build("list"),
    Op.BUILD_SET: _build("set"),
    Op.BUILD_MAP: _build("dict", per_item=2),
    Op.BUILD_CONST_KEY_MAP: _build_const_key_map,
    Op.BUILD_SLICE: _build("slice"),
    Op.BUILD_STRING: _build("string"),
    Op.LIST_APPEND: _grow("append"),
    Op.SET_ADD: _grow("add"),
    Op.MAP_ADD: _map_add,
    Op.LIST_EXTEND: _grow("extend"),
    Op.SET_UPDATE: _grow("update_set"),
    Op.DICT_UPDATE: _grow("update_dict"),
    Op.DICT_MERGE: _dict_merge,
    Op.LIST_TO_TUPLE: _list_to_tuple,
    Op.UNPACK_SEQUENCE: _unpack_sequence,
    Op.UNPACK_EX: _unpack_ex,
    Op.CONVERT: _convert,
    Op.FORMAT: _format,
    Op.GET_ITER: _get_iter,
    Op.FOR_ITER: _for_iter,
    Op.MATCH_MAPPING: _is_pattern("mapping"),
    Op.MATCH_SEQUENCE: _is_pattern("sequence"),
    Op.MATCH_KEYS: _match_keys,
    Op.MATCH_CLASS: _match_class,
    Op.GET_LEN: _get_len,
    Op.DICT_WITHOUT_KEYS: _dict_without_keys,
}
