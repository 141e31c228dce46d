"""Generators whose frames are interpreted, as real generators: whoever is given one can use it.

Counterpart: torch/_dynamo/variables/functions.py LocalGeneratorObjectVariable
Differs: the generator's state is a FrameState that any machine may resume; the real generator around it only passes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Returned, Yielded

Run = Callable[[FrameState, Any], Returned | Yielded]


def make_generator(frame: FrameState, run: Run, name: str, qualname: str) -> Generator[Any, Any, Any]:
    """A generator that has not begun. `run` resumes a frame, by an exception if one is given."""
    generator: Any = _drive(frame, run)
    generator.__name__, generator.__qualname__ = name, qualname
    return generator


def _drive(frame: FrameState, run: Run) -> Generator[Any, Any, Any]:
    # At most one exception, in a list: a local variable would be in the traceback of what it holds.
    thrown: list[BaseException] = []
    while True:
        outcome = _thrown_into(frame, run, thrown) if thrown else run(frame, None)
        if isinstance(outcome, Returned):
            return outcome.value
        try:
            sent = yield outcome.value
        except BaseException as error:
            thrown.append(error)
        else:
            frame.stack.append(sent)
            del sent, outcome


def _thrown_into(frame: FrameState, run: Run, box: list[BaseException]) -> Returned | Yielded:
    """Throw an exception: into what the generator delegates to, if it does, as `generator.throw` and `close` do."""
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
    frame.stack.append(None)  # the place of what would have been sent
    try:
        return run(frame, error)
    finally:
        del error


def receiver_of(frame: FrameState) -> Any:
    """What a paused generator delegates to; None if it does not."""
    current = frame.current
    is_delegating = frame.is_started and current.op is Op.YIELD_VALUE and current.arg
    return frame.stack[-1] if is_delegating else None


def end_delegation(frame: FrameState, value: Any) -> None:
    """Go on after `yield from`, which gives the value."""
    send = frame.code.instructions[frame.offset - 2]
    assert send.op is Op.SEND, send
    frame.stack[-1] = value
    frame.offset = send.arg


def _pass_on(receiver: Any, thrown: BaseException) -> tuple[Any, BaseException | None]:
    """What the receiver yields, or what it raises. An exception it cannot be told comes back."""
    try:
        if isinstance(thrown, GeneratorExit):
            close = receiver.close if isinstance(receiver, GeneratorType) else getattr(receiver, "close", None)
            if close is not None:
                close()
            return None, thrown
        throw = getattr(receiver, "throw", None)
        if throw is None:
            return None, thrown
        return throw(thrown), None
    except BaseException as raised:
        return None, raised
