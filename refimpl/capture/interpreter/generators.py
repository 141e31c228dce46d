"""Real generators around interpreted frames, so that any code can use them.

Counterpart: torch/_dynamo/variables/functions.py LocalGeneratorObjectVariable
Differs: the state is a FrameState that any machine may resume; the real generator around it only passes values on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from types import GeneratorType, SimpleNamespace
from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Returned, Yielded

Run = Callable[[FrameState, Any], Returned | Yielded]


def make_generator(frame: FrameState, run: Run, name: str, qualname: str) -> Generator[Any, Any, Any]:
    """A generator that begins, or continues, at the frame's offset. `run` resumes a frame, with an exception if one is given.

    A machine may resume the frame as well after it has begun; the generator then continues after that.
    """
    generator: Any = _drive(frame, run, is_paused=frame.is_started)
    generator.__name__, generator.__qualname__ = name, qualname
    if frame.is_started:
        next(generator)
    return generator


def _drive(frame: FrameState, run: Run, *, is_paused: bool) -> Generator[Any, Any, Any]:
    # At most one exception, in a list: a local variable would appear in the exception's own traceback.
    thrown: list[BaseException] = []
    result = None
    sent = None
    while True:
        if is_paused:
            try:
                sent = yield result
            except BaseException as error:
                thrown.append(error)
        is_paused = True
        if frame.is_done:
            if thrown:
                raise thrown.pop()
            return None
        if thrown:
            outcome = _thrown_into(frame, run, thrown)
        else:
            if frame.is_started:
                frame.stack.append(sent)
            sent = None  # not kept alive while the frame runs
            outcome = run(frame, None)
        if isinstance(outcome, Returned):
            return outcome.value
        result = outcome.value
        del outcome


def _thrown_into(frame: FrameState, run: Run, box: list[BaseException]) -> Returned | Yielded:
    """Throws an exception: into the generator it delegates to, if any, as `generator.throw` and `close` do."""
    thrown = box.pop()
    raised: BaseException | None = None
    try:
        receiver = receiver_of(frame)
        if receiver is None:
            return _throw(frame, run, thrown)
        value, raised = _pass_on(receiver, thrown)
        if raised is None:
            return Yielded(value)
        if isinstance(raised, StopIteration) and not isinstance(thrown, GeneratorExit):
            end_delegation(frame, raised.value)
            return run(frame, None)
        return _throw(frame, run, raised)
    finally:
        del thrown, raised


def _throw(frame: FrameState, run: Run, error: BaseException) -> Returned | Yielded:
    if frame.is_started:
        frame.stack.append(None)  # where `send` puts its value
    try:
        return run(frame, error)
    finally:
        del error


def receiver_of(frame: FrameState) -> Any:
    """The iterator that a suspended generator delegates to; None if there is none."""
    current = frame.current
    is_delegating = frame.is_started and current.op is Op.YIELD_VALUE and current.arg
    return frame.stack[-1] if is_delegating else None


def end_delegation(frame: FrameState, value: Any) -> None:
    """Continues after `yield from` with this result."""
    send = frame.code.instructions[frame.offset - 2]
    assert send.op is Op.SEND, send
    frame.stack[-1] = value
    frame.offset = send.arg


def _pass_on(receiver: Any, thrown: BaseException) -> tuple[Any, BaseException | None]:
    """The value that the receiver yields, or the exception it raises. An exception that it cannot receive is returned."""
    try:
        if isinstance(thrown, GeneratorExit):
            close = receiver.close if isinstance(receiver, GeneratorType) else _close_of(receiver)
            if close is not None:
                close()
            return None, thrown
        throw = getattr(receiver, "throw", None)
        if throw is None:
            return None, thrown
        return throw(thrown), None
    except BaseException as raised:
        return None, raised


def _close_of(receiver: Any) -> Any:
    """Its `close` method, if there is one. An error of looking it up goes to `sys.unraisablehook` only."""
    try:
        return getattr(receiver, "close", None)
    except BaseException as error:
        said: Any = SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=receiver
        )
        sys.unraisablehook(said)
        return None
