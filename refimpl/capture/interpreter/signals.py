"""Signals: what an instruction returns to the loop if the next instruction of the frame is not to run next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refimpl.capture.interpreter.frame import FrameState, Then


@dataclass(frozen=True, slots=True)
class Enter:
    """Run this frame first; its `then` says what to do with the result. `thrown`: an exception to raise in it."""

    frame: FrameState
    thrown: Any = None

    def for_(self, then: Then) -> Enter:
        """The same, for an instruction that uses the result in this way."""
        self.frame.then = then
        return self


@dataclass(frozen=True, slots=True)
class Returned:
    """The frame is done."""

    value: Any


@dataclass(frozen=True, slots=True)
class Yielded:
    """The frame suspends. It continues when a value is put on its stack."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reraised:
    """An exception is raised again, without a new traceback entry. None: the exception being handled."""

    error: Any


class HandledChanged:
    """The frame now handles another exception."""

    __slots__ = ()


HANDLED_CHANGED = HandledChanged()
Signal = Enter | Returned | Yielded | Reraised | HandledChanged


class Exhausted:
    """The result of `next` for an iterator that is exhausted."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value  # the result of a generator
