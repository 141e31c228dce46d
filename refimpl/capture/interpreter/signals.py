"""What an instruction can tell the loop, besides going on: nothing of it is an exception of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refimpl.capture.interpreter.frame import FrameState, Then


@dataclass(frozen=True, slots=True)
class Enter:
    """Run this frame first; its `then` says what is done with what it gives. `thrown`: an exception to raise where it waits."""

    frame: FrameState
    thrown: Any = None

    def for_(self, then: Then) -> Enter:
        """The same, for an instruction that does this with the result."""
        self.frame.then = then
        return self


@dataclass(frozen=True, slots=True)
class Returned:
    """The frame is done."""

    value: Any


@dataclass(frozen=True, slots=True)
class Yielded:
    """The frame pauses. It goes on when a value is put on its stack."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reraised:
    """An exception goes on as it is: no entry is added to its traceback. None: the one that is handled now."""

    error: Any


class HandledChanged:
    """The frame handles another exception from now on."""

    __slots__ = ()


HANDLED_CHANGED = HandledChanged()
Signal = Enter | Returned | Yielded | Reraised | HandledChanged


class Exhausted:
    """What a domain gives for the next element where there is none."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value  # what a generator returned
