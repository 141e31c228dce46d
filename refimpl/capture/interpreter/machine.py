"""The loop: runs frames, calls and exceptions included, until the lowest frame is done.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase.run, step
Differs: calls do not nest in Python: a stack of frames is what the machine is. `frames` may be read, kept and put back
between two instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.operations import OPERATIONS
from refimpl.capture.interpreter.signals import (
    HANDLED_CHANGED,
    Enter,
    HandledChanged,
    Reraised,
    Returned,
    Signal,
    Yielded,
)

_TABLE = [OPERATIONS.get(op) for op in [None, *Op]]  # by number
DEPTH_LIMIT = 900  # of frames of one machine


class Machine:
    """Runs frames in a domain."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.frames: list[FrameState] = []

    def run(self, frame: FrameState, thrown: Any = None) -> Returned | Yielded:
        """Run until the frame returns or yields. `thrown`: raise this where it stands now. Raises what the user's code raises."""
        self.push(frame)
        try:
            return self.resume(thrown)
        finally:
            del thrown  # a frame in the traceback of an exception that it holds would keep both alive

    def resume(self, thrown: Any = None) -> Returned | Yielded:
        """Run the frames that are there."""
        try:
            while True:
                outcome = self._run_until_told(self.advance, thrown)
                thrown = None
                if outcome is not None:
                    return outcome
        finally:
            del thrown

    def step(self) -> Returned | Yielded | None:
        """Run one instruction of the topmost frame, calls of functions that are not entered included."""
        return self._run_until_told(self._advance_by_one, None)

    def push(self, frame: FrameState) -> None:
        """Run this frame next."""
        frame.is_running = True
        self.frames.append(frame)

    def advance(self, frame: FrameState) -> Signal:
        """Run instructions of one frame until it has something to tell."""
        instructions, table, domain = frame.code.instructions, _TABLE, self.domain
        while True:
            instruction = instructions[frame.offset]
            frame.offset += 1
            signal = table[instruction.op](domain, frame, instruction.arg)  # pyright: ignore[reportOptionalCall]
            if signal is not None:
                return signal

    def _advance_by_one(self, frame: FrameState) -> Signal:
        instruction = frame.code.instructions[frame.offset]
        frame.offset += 1
        signal = OPERATIONS[instruction.op](self.domain, frame, instruction.arg)
        return HANDLED_CHANGED if signal is None else signal

    def _run_until_told(self, advance: Callable[[FrameState], Signal], thrown: Any) -> Returned | Yielded | None:
        """Run the topmost frame until it has something to tell, and see to that. What the lowest frame gives, at the end."""
        frame = self.frames[-1]
        error: Any = None
        signal: Signal | None = None
        try:
            try:
                chosen = advance if thrown is None else self._raising(thrown)
                signal = self.domain.under(self._handled(), chosen, frame)
            except BaseException as raised:
                error = self.domain.user_exception(raised)
            match signal:
                case None:
                    self._unwind(error, is_new=True)
                case Reraised():
                    self._reraise(signal.error)
                case Enter():
                    self._enter(signal.frame)
                    if signal.thrown is not None:
                        self._unwind(signal.thrown, is_new=True)
                case Returned() | Yielded():
                    self._pop(is_done=isinstance(signal, Returned))
                    if not self.frames:
                        return signal
                    self._deliver(frame, signal)
                case HandledChanged():
                    pass
            return None
        finally:
            del thrown, error, signal

    def _pop(self, *, is_done: bool) -> FrameState:
        frame = self.frames.pop()
        frame.is_running, frame.is_done = False, is_done
        return frame

    def _raising(self, error: Any) -> Callable[[FrameState], Signal]:
        box = [error]
        return lambda frame: self.domain.throw(box.pop())

    def _handled(self) -> Any:
        """The exception that is handled now: a frame that handles none is inside of what its caller handles."""
        for frame in reversed(self.frames):
            if frame.handled is not None:
                return frame.handled
        return None

    def _enter(self, frame: FrameState) -> None:
        if len(self.frames) < DEPTH_LIMIT:
            self.push(frame)
            return
        error = None
        try:
            self.domain.too_deep()
        except BaseException as raised:
            error = self.domain.user_exception(raised)
        self._unwind(error, is_new=True)

    def _deliver(self, above: FrameState, signal: Returned | Yielded) -> None:
        """Give the frame that is now on top what the one above it gave."""
        if above.then is Then.DROP:
            return
        is_end = isinstance(signal, Returned) and above.code.is_generator and above.then is not Then.PUSH
        if is_end:
            self._end_iteration(above.then, signal.value)
        else:
            self.frames[-1].stack.append(signal.value)

    def _end_iteration(self, then: Then, value: Any) -> None:
        """The loop or `yield from` of the frame on top is over."""
        frame = self.frames[-1]
        if then is Then.ITERATE:
            frame.stack.pop()
        else:
            frame.stack[-1] = value
        frame.offset = frame.current.arg

    def _reraise(self, error: Any) -> None:
        is_new = False
        try:
            if error is None:
                error = self._handled()
            if error is None:
                is_new, error = self.domain.nothing_to_reraise()
            self._unwind(error, is_new=is_new)
        finally:
            del error

    def _unwind(self, error: Any, *, is_new: bool) -> None:
        """Go to the handler of an exception that the current instruction lets out; out of the loop if there is none."""
        frames, domain = self.frames, self.domain
        try:
            while frames:
                frame = frames[-1]
                if is_new:
                    domain.add_traceback(error, frame)
                handler = frame.current.handler if frame.is_started else None
                if handler is not None:
                    del frame.stack[handler.depth :]
                    frame.stack.append(error)
                    frame.offset = handler.target
                    return
                self._pop(is_done=True)
                if frame.code.is_generator:
                    error = domain.leave_generator(error)
                elif frame.then in (Then.ITERATE, Then.DELEGATE):
                    is_stop, value = domain.stop_value(error)
                    if is_stop:
                        self._end_iteration(frame.then, value)
                        return
                is_new = True
            domain.leave(error)
        finally:
            del error
