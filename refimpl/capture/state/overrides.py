"""Which `__torch_function__` of classes and modes apply at a point of a segment.

Counterpart: torch/_dynamo/variables/torch_function.py SymbolicTorchFunctionState, TorchFunctionModeStackVariable
Differs: the modes of the program are pushed nowhere while it is interpreted; a segment that breaks while a mode of its own is on
ends before the mode was entered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from refimpl._torch import functions_may_be_overridden, overrides_are_off
from refimpl.capture.values import Value


class Off(IntEnum):
    """What `DisableTorchFunctionSubclass` and `DisableTorchFunction` have turned off."""

    NOTHING = 0
    CLASSES = 1
    EVERYTHING = 2


def off_now() -> Off:
    """What is off in this thread."""
    if overrides_are_off():
        return Off.EVERYTHING
    return Off.NOTHING if functions_may_be_overridden() else Off.CLASSES


@dataclass(slots=True)
class OverrideState:
    """The stack of function modes, outermost first, and what is off."""

    modes: list[Value] = field(default_factory=list)
    off: Off = Off.NOTHING
    at_entry: tuple[Value, ...] = ()
    changed_at: int | None = None  # position of the first change; None if the stack is as at entry

    def begin(self, modes: list[Value]) -> None:
        """Takes the modes that are on when the segment is entered."""
        self.modes, self.at_entry = modes, tuple(modes)

    @property
    def has_modes(self) -> bool:
        """Whether a mode answers calls now."""
        return bool(self.modes) and self.off is not Off.EVERYTHING

    @property
    def asks_classes(self) -> bool:
        """Whether the class of an argument answers calls now."""
        return self.off is Off.NOTHING

    def push(self, mode: Value, position: int) -> None:
        self.modes.append(mode)
        self._note(position)

    def pop(self, position: int) -> Value:
        mode = self.modes.pop()
        self._note(position)
        return mode

    def _note(self, position: int) -> None:
        is_as_before = len(self.modes) == len(self.at_entry) and all(map(_is, self.modes, self.at_entry))
        if is_as_before:
            self.changed_at = None
        elif self.changed_at is None:
            self.changed_at = position


def _is(left: Value, right: Value) -> bool:
    return left is right
