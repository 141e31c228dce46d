"""Calls, definitions, imports, generators, returns."""

from __future__ import annotations

from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.signals import Enter, Exhausted, Returned, Yielded
from refimpl.capture.interpreter.value_operations import put


def _call(domain: Domain, frame: FrameState, count: int) -> Enter | None:
    stack = frame.stack
    first = len(stack) - count
    args = stack[first:]
    del stack[first:]
    return put(frame, domain.call(frame, stack.pop(), args, {}))


def _call_kw(domain: Domain, frame: FrameState, count: int) -> Enter | None:
    stack = frame.stack
    names = domain.keyword_names(stack.pop())
    first = len(stack) - count
    args = stack[first:]
    del stack[first:]
    positional = count - len(names)
    kwargs = dict(zip(names, args[positional:], strict=True))
    return put(frame, domain.call(frame, stack.pop(), args[:positional], kwargs))


def _call_ex(domain: Domain, frame: FrameState, has_keywords: bool) -> Enter | None:
    kwargs = frame.stack.pop() if has_keywords else None
    args = frame.stack.pop()
    return put(frame, domain.call_ex(frame, frame.stack.pop(), args, kwargs))


def _make_function(domain: Domain, frame: FrameState, has_qualname: bool) -> None:
    qualname = frame.stack.pop() if has_qualname else None
    frame.stack.append(domain.make_function(frame, frame.stack.pop(), qualname))


def _set_function_attribute(domain: Domain, frame: FrameState, which: str) -> None:
    function = frame.stack.pop()
    frame.stack.append(domain.set_function_attribute(function, which, frame.stack.pop()))


def _load_build_class(domain: Domain, frame: FrameState, arg: Any) -> None:
    frame.stack.append(domain.load_build_class(frame))


def _import_name(domain: Domain, frame: FrameState, name: str) -> None:
    names = frame.stack.pop()
    frame.stack.append(domain.import_name(frame, name, names, frame.stack.pop()))


def _import_from(domain: Domain, frame: FrameState, name: str) -> None:
    frame.stack.append(domain.import_from(frame.stack[-1], name))


def _statement(domain: Domain, frame: FrameState, name: str) -> None:
    domain.intrinsic(frame, name)


def _intrinsic_1(domain: Domain, frame: FrameState, name: str) -> None:
    frame.stack.append(domain.intrinsic(frame, name, frame.stack.pop()))


def _intrinsic_2(domain: Domain, frame: FrameState, name: str) -> None:
    second = frame.stack.pop()
    frame.stack.append(domain.intrinsic(frame, name, frame.stack.pop(), second))


def _return_value(domain: Domain, frame: FrameState, arg: Any) -> Returned:
    return Returned(frame.stack.pop())


def _yield_value(domain: Domain, frame: FrameState, delegates: bool) -> Yielded:
    return Yielded(frame.stack.pop())


def _get_yield_from_iter(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    return put(frame, domain.yield_from_iter(frame, frame.stack.pop()))


def _send(domain: Domain, frame: FrameState, target: int) -> Enter | None:
    value = frame.stack.pop()
    item = domain.send(frame.stack[-1], value)
    if type(item) is Exhausted:
        frame.stack[-1] = item.value
        frame.offset = target
        return None
    return item.for_(Then.DELEGATE) if type(item) is Enter else put(frame, item)


CALL_OPERATIONS = {
    Op.CALL: _call,
    Op.CALL_KW: _call_kw,
    Op.CALL_EX: _call_ex,
    Op.MAKE_FUNCTION: _make_function,
    Op.SET_FUNCTION_ATTRIBUTE: _set_function_attribute,
    Op.LOAD_BUILD_CLASS: _load_build_class,
    Op.IMPORT_NAME: _import_name,
    Op.IMPORT_FROM: _import_from,
    Op.STATEMENT: _statement,
    Op.INTRINSIC_1: _intrinsic_1,
    Op.INTRINSIC_2: _intrinsic_2,
    Op.RETURN_VALUE: _return_value,
    Op.YIELD_VALUE: _yield_value,
    Op.GET_YIELD_FROM_ITER: _get_yield_from_iter,
    Op.SEND: _send,
}
