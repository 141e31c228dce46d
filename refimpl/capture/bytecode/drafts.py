"""Drafts: instructions on their way from CPython's set to ours. The operations are ours; the stack still has CPython's NULLs.

A slot of that stack may hold no value: the NULL beside a callable, the position (`lasti`) below an exception, the traceback and
value that 3.10 keeps beside an exception's type. `slots.py` removes these slots.
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
    """Operations on stack slots. `slots.py` replaces them by operations on values."""

    PUSH_NULL = 1000
    ROTATE = auto()  # moves the top below the next n - 1 slots
    CALL = auto()  # (slots of the callable and arguments, whether a tuple of keyword names is on top)
    CALL_EX = auto()  # (slots of the callable and operands, whether there are keyword arguments)
    MARK_BLOCK = auto()  # (block, slots above it): the depth to which 3.10 cuts the stack for this block


class Label(NamedTuple):
    """The n-th step that an instruction of CPython became. A negative start names a block of steps that CPython does not have."""

    start: int
    step: int = 0


Step = tuple[Op | SlotOp, Any]
Steps = list[Step]


@dataclass(frozen=True, slots=True)
class Region:
    """The handler of an exception, in slots. With `block`, `depth` counts from the depth at its MARK_BLOCK."""

    target: Label
    depth: int
    keeps_position: bool = False
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A step with its label and region. An argument that is a label is a jump target."""

    op: Op | SlotOp
    arg: Any
    line: int | None
    offset: int
    region: Region | None


class Lowering:
    """What the rules of a Python version need to know of the code object."""

    def __init__(self, code: CodeType, raw: list[RawInstruction]) -> None:
        self.code = code
        self.raw = raw
        self.slots = slot_names(code)
        self._position = {instruction.start: index for index, instruction in enumerate(raw)}
        self._slot_of = {name: index for index, name in reversed(list(enumerate(self.slots)))}
        self._first_free = len(self.slots) - len(code.co_freevars)

    def after(self, offset: int, *names: str) -> Label:
        """The label of the instruction after a run of instructions with these names, of which the first begins at `offset`."""
        position = self._position[offset]
        found = tuple(instruction.name for instruction in self.raw[position : position + len(names)])
        if found != names:
            self.refuse(f"{found} where {names} should be", None)
        return Label(self.raw[position + len(names)].start)

    def follows(self, raw: RawInstruction, name: str) -> bool:
        """Whether the previous instruction has this name."""
        position = self._position[raw.start]
        return position > 0 and self.raw[position - 1].name == name

    def slot_of_cell(self, index: int) -> int:
        """The slot of a cell: 3.10 numbers cells and free variables apart from other locals."""
        cells = self.code.co_cellvars
        return self._slot_of[cells[index]] if index < len(cells) else self._first_free + index - len(cells)

    def refuse(self, reason: str, line: int | None) -> Steps:
        """Raises UnsupportedCode."""
        raise UnsupportedCode(self.code, reason, line)


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of arguments and other locals, then of cells that are not among them, then of free variables."""
    local = code.co_varnames
    return (*local, *(name for name in code.co_cellvars if name not in local), *code.co_freevars)


Rule = Callable[[Lowering, RawInstruction], Steps]
