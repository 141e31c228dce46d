"""Instructions between CPython's and ours: the right operations, on a stack that still has CPython's NULLs in it.

A slot of that stack may hold no value: NULLs around callables, positions below exceptions, the two thirds of an exception that
3.10 keeps beside it. `slots.py` takes them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from types import CodeType
from typing import Any, NamedTuple

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import Op


class SlotOp(IntEnum):
    """Operations on slots, which are gone afterwards."""

    PUSH_NULL = 1000
    ROTATE = auto()  # the top goes below the n - 1 next slots
    CALL = auto()  # (slots of callable and arguments, whether names of keywords are on top)
    CALL_EX = auto()  # (slots of callable and operands, whether there are keywords)
    MARK_BLOCK = auto()  # (block, slots above it): the depth to which 3.10 cuts the stack for this block


class Label(NamedTuple):
    """The n-th step of what an instruction of CPython became; a negative start is a block of steps that it does not have."""

    start: int
    step: int = 0


Step = tuple[Op | SlotOp, Any]
Steps = list[Step]


@dataclass(frozen=True, slots=True)
class Region:
    """Where exceptions go, in slots. With `block`, `depth` counts from the depth that its MARK_BLOCK finds."""

    target: Label
    depth: int
    keeps_position: bool = False
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A step with its place and region. Arguments that are labels are jumps."""

    op: Op | SlotOp
    arg: Any
    line: int | None
    offset: int
    region: Region | None


class Lowering:
    """What the rules of a version ask of the code object."""

    def __init__(self, code: CodeType, raw: list[RawInstruction]) -> None:
        self.code = code
        self.raw = raw
        self.slots = slot_names(code)
        self._position = {instruction.start: index for index, instruction in enumerate(raw)}
        self._slot_of = {name: index for index, name in reversed(list(enumerate(self.slots)))}
        self._first_free = len(self.slots) - len(code.co_freevars)

    def after(self, offset: int, *names: str) -> Label:
        """The instruction that follows those of the given names, the first of which begins at `offset`."""
        position = self._position[offset]
        found = tuple(instruction.name for instruction in self.raw[position : position + len(names)])
        if found != names:
            self.refuse(f"{found} where {names} should be", None)
        return Label(self.raw[position + len(names)].start)

    def follows(self, raw: RawInstruction, name: str) -> bool:
        """Whether the instruction before has the name."""
        position = self._position[raw.start]
        return position > 0 and self.raw[position - 1].name == name

    def slot_of_cell(self, index: int) -> int:
        """3.10 numbers cells and free variables apart from other locals."""
        cells = self.code.co_cellvars
        return self._slot_of[cells[index]] if index < len(cells) else self._first_free + index - len(cells)

    def refuse(self, reason: str, line: int | None) -> Steps:
        """Raises UnsupportedCode."""
        raise UnsupportedCode(self.code, reason, line)


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of arguments and other locals, then of cells that are none of these, then of free variables."""
    local = code.co_varnames
    return (*local, *(name for name in code.co_cellvars if name not in local), *code.co_freevars)


Rule = Callable[[Lowering, RawInstruction], Steps]
