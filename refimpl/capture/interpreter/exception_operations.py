"""Raising, handling, `with`."""

from __future__ import annotations

from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.signals import HANDLED_CHANGED, Enter, HandledChanged, Reraised


def _raise(domain: Domain, frame: FrameState, count: int) -> Reraised | None:
    if not count:
        return Reraised(None)
    cause = frame.stack.pop() if count == 2 else None
    domain.raise_(frame.stack.pop(), cause, count == 2)
    return None


def _reraise(domain: Domain, frame: FrameState, arg: Any) -> Reraised:
    return Reraised(frame.stack.pop())


def _push_exc_info(domain: Domain, frame: FrameState, arg: Any) -> HandledChanged:
    error = frame.stack[-1]
    frame.stack[-1] = frame.handled
    frame.stack.append(error)
    frame.handled = error
    return HANDLED_CHANGED


def _pop_except(domain: Domain, frame: FrameState, arg: Any) -> HandledChanged:
    frame.handled = frame.stack.pop()
    return HANDLED_CHANGED


def _check_exc_match(domain: Domain, frame: FrameState, arg: Any) -> None:
    kinds = frame.stack.pop()
    frame.stack.append(domain.constant(domain.matches(frame.stack[-1], kinds)))


def _check_group_match(domain: Domain, frame: FrameState, arg: Any) -> HandledChanged | None:
    kinds = frame.stack.pop()
    rest, matching = domain.split_group(frame.stack.pop(), kinds)
    frame.stack += [rest, matching]
    if not domain.is_none(matching):
        frame.handled = matching
        return HANDLED_CHANGED
    return None


def _prepare_reraise_star(domain: Domain, frame: FrameState, arg: Any) -> None:
    errors = frame.stack.pop()
    frame.stack.append(domain.regroup(frame.stack.pop(), errors))


def _cleanup_throw(domain: Domain, frame: FrameState, arg: Any) -> Reraised | None:
    error = frame.stack.pop()
    is_stop, value = domain.stop_value(error)
    if not is_stop:
        return Reraised(error)
    frame.stack[-2:] = [domain.constant(None), value]
    return None


def _stop_iteration_error(domain: Domain, frame: FrameState, arg: Any) -> None:
    frame.stack.append(domain.leave_generator(frame.stack.pop()))


def _with_enter(domain: Domain, frame: FrameState, arg: Any) -> Enter | None:
    exit_, result = domain.enter_context(frame, frame.stack.pop())
    frame.stack.append(exit_)
    if type(result) is Enter:
        return result.for_(Then.PUSH)
    frame.stack.append(result)
    return None


def _with_except_start(domain: Domain, frame: FrameState, depth: int) -> Enter | None:
    result = domain.exit_context(frame, frame.stack[-depth], frame.stack[-1])
    if type(result) is Enter:
        return result.for_(Then.PUSH)
    frame.stack.append(result)
    return None


EXCEPTION_OPERATIONS = {
    Op.RAISE: _raise,
    Op.RERAISE: _reraise,
    Op.PUSH_EXC_INFO: _push_exc_info,
    Op.POP_EXCEPT: _pop_except,
    Op.CHECK_EXC_MATCH: _check_exc_match,
    Op.CHECK_GROUP_MATCH: _check_group_match,
    Op.PREPARE_RERAISE_STAR: _prepare_reraise_star,
    Op.CLEANUP_THROW: _cleanup_throw,
    Op.STOP_ITERATION_ERROR: _stop_iteration_error,
    Op.WITH_ENTER: _with_enter,
    Op.WITH_EXCEPT_START: _with_except_start,
}
