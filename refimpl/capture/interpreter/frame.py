"""A frame as data: code, slots, stack and offset of a running function.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase, types.FrameType
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any

from refimpl.capture.bytecode.instructions import Instruction, NormalizedCode


class _Unbound:
    """The content of the slot of an unbound variable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


class Then(Enum):
    """What the calling frame does with the result of a frame."""

    PUSH = "a call: the result is put on the stack"
    DROP = "an assignment to an attribute or item: there is no result"
    ITERATE = (
        "a step of a loop: what a generator yields or `__next__` returns is put on the stack, the end ends the loop"
    )
    DELEGATE = "`yield from`: the same, and what is returned at the end is the value of the expression"


@dataclass(slots=True, kw_only=True, eq=False)
class FrameState:
    """The state of a function between two instructions. `offset` is the index of the next instruction."""

    code: NormalizedCode
    slots: list[Any]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    names: Any = None  # the mapping that a class body or module fills
    stack: list[Any] = field(default_factory=list)
    offset: int = 0
    handled: Any = None  # the exception that this frame handles; None: that of its caller
    then: Then = Then.PUSH
    is_done: bool = False  # it has returned, or an exception has left it
    is_running: bool = False  # a machine has it on its stack
    shown: FrameType | None = None  # the frame that tracebacks show instead

    @property
    def current(self) -> Instruction:
        """The current instruction, or the last one that ran."""
        return self.code.instructions[max(self.offset - 1, 0)]

    @property
    def is_started(self) -> bool:
        """Whether an instruction has run."""
        return self.offset > 0

    def line(self) -> int:
        """The user's line."""
        line = self.current.line if self.is_started else None
        return self.code.code.co_firstlineno if line is None else line
