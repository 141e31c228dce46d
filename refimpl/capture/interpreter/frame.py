"""A frame as data: what a function that is being run consists of.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase, types.FrameType
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any

from refimpl.capture.bytecode.instructions import Instruction, NormalizedCode


class _Unbound:
    """What is in the slot of a variable that has no value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


class Then(Enum):
    """What the frame below does with what a frame gives."""

    PUSH = "a call: the result is put on the stack"
    DROP = "an assignment to an attribute or item: there is no result"
    ITERATE = (
        "a step of a loop: what a generator yields or `__next__` returns is put on the stack, the end ends the loop"
    )
    DELEGATE = "`yield from`: the same, and what is returned at the end is the value of the expression"


@dataclass(slots=True, kw_only=True, eq=False)
class FrameState:
    """A function's state between two instructions. `offset` is the index of the next instruction."""

    code: NormalizedCode
    slots: list[Any]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    names: Any = None  # the mapping that a class body or module fills
    stack: list[Any] = field(default_factory=list)
    offset: int = 0
    handled: Any = None  # the exception that this frame handles; None: what its caller handles
    then: Then = Then.PUSH
    is_done: bool = False  # it has returned, or let an exception out
    is_running: bool = False  # some machine has it on its stack
    shown: FrameType | None = None  # what tracebacks show in its place

    @property
    def current(self) -> Instruction:
        """The instruction that is run now, or was last."""
        return self.code.instructions[max(self.offset - 1, 0)]

    @property
    def is_started(self) -> bool:
        """Whether an instruction has run."""
        return self.offset > 0

    def line(self) -> int:
        """The user's line."""
        line = self.current.line if self.is_started else None
        return self.code.code.co_firstlineno if line is None else line

    def snapshot(self) -> FrameSnapshot:
        """The state now; values are shared, not copied."""
        return FrameSnapshot(
            code=self.code, slots=tuple(self.slots), globals=self.globals, builtins=self.builtins, names=self.names,
            stack=tuple(self.stack), offset=self.offset, handled=self.handled, then=self.then,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSnapshot:
    """The same, frozen: what a graph break keeps."""

    code: NormalizedCode
    slots: tuple[Any, ...]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    names: Any
    stack: tuple[Any, ...]
    offset: int
    handled: Any
    then: Then

    def thaw(self) -> FrameState:
        """A frame that goes on from here. Iterators and lists under construction are on its stack: they go on where they are."""
        return FrameState(
            code=self.code, slots=list(self.slots), globals=self.globals, builtins=self.builtins, names=self.names,
            stack=list(self.stack), offset=self.offset, handled=self.handled, then=self.then,
        )  # fmt: skip
