"""The machine: the loop that runs frames, with their calls and exceptions, until the lowest frame is done.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase.run, step
Differs: calls do not nest in Python; the machine has a stack of frames. Between two instructions, `frames` may be read, kept
and restored.
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

_TABLE = [OPERATIONS.get(op) for op in [None, *Op]]  # by the number of the operation
DEPTH_LIMIT = 900  # frames per machine


class Machine:
    """Runs frames in a domain."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.frames: list[FrameState] = []

    def run(self, frame: FrameState, thrown: Any = None) -> Returned | Yielded:
        """Runs until the frame returns or yields. `thrown`: an exception to raise at the current instruction. Raises the user's
        exceptions.
        """
        self.push(frame)
        try:
            return self.resume(thrown)
        finally:
            del thrown  # its traceback has a frame that refers to it: both would stay alive

    def resume(self, thrown: Any = None) -> Returned | Yielded:
        """Runs the existing frames."""
        try:
            while True:
                outcome = self._run_until_told(self.advance, thrown)
                thrown = None
                if outcome is not None:
                    return outcome
        finally:
            del thrown

    def step(self) -> Returned | Yielded | None:
        """Runs one instruction of the topmost frame, with the calls of functions that are not interpreted."""
        return self._run_until_told(self._advance_by_one, None)

    def push(self, frame: FrameState) -> None:
        """Puts a frame on top, to run next."""
        frame.is_running = True
        self.frames.append(frame)

    def advance(self, frame: FrameState) -> Signal:
        """Runs instructions of one frame until one of them returns a signal."""
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
        """Runs the topmost frame until it returns a signal, and handles that. Returns the result of the lowest frame when it is
        done.
        """
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
        return lambda frame: self.domain.throw(box.pop(), is_handling=frame.handled is not None)

    def _handled(self) -> Any:
        """The exception being handled. A frame that handles none inherits its caller's."""
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
        """Passes the result of a frame to the frame below it, which is now on top."""
        if above.then is Then.DROP:
            return
        is_end = isinstance(signal, Returned) and above.code.is_generator and above.then is not Then.PUSH
        if is_end:
            self._end_iteration(above.then, signal.value)
        else:
            self.frames[-1].stack.append(signal.value)

    def _end_iteration(self, then: Then, value: Any) -> None:
        """Ends the loop or `yield from` of the topmost frame."""
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
        """Jumps to the handler of an exception from the current instruction; raises it out of the machine if there is none."""
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
