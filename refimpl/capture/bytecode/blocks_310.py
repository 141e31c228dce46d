"""The block stack of CPython 3.10, computed ahead of the run: which handler catches the exceptions of each instruction.

CPython 3.10 pushes a block when it enters `try` or `with`, replaces the block while a handler runs, and pops blocks to find a
handler. Its compiler keeps the stack the same on every path to an instruction, so one pass computes it. Each handler gets two
blocks of steps that have no instruction in CPython: one that enters the handler, one that leaves it by an exception.
"""

from __future__ import annotations

from dataclasses import dataclass

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Draft, Label, Region, Steps
from refimpl.capture.bytecode.errors import MalformedCode
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.bytecode.lower_310 import HANDLED_SLOTS, HANDLER_ENTRY, HANDLER_EXIT

_SETUPS = frozenset({"SETUP_FINALLY", "SETUP_WITH"})
_ENDS = frozenset({"JUMP_ABSOLUTE", "JUMP_FORWARD", "RETURN_VALUE", "RAISE_VARARGS", "RERAISE"})


@dataclass(frozen=True, slots=True)
class _Block:
    setup: int  # offset of the instruction that pushed the block
    is_handler: bool  # whether the block's handler is running

    def region(self) -> Region:
        """The region that enters the handler; while the handler runs, the one that leaves it."""
        if self.is_handler:
            return Region(Label(-2 * self.setup - 3), depth=HANDLED_SLOTS, block=self.setup)
        return Region(Label(-2 * self.setup - 2), depth=0, block=self.setup)


_Stack = tuple[_Block, ...]


def regions_by_blocks(raw: list[RawInstruction]) -> tuple[dict[int, Region], list[tuple[Label, list[Draft]]]]:
    """Maps the offset of each instruction to its region, if it has one; and the blocks of steps around handlers."""
    stacks = _block_stacks(raw)
    regions = {offset: stack[-1].region() for offset, stack in stacks.items() if stack}
    extra: list[tuple[Label, list[Draft]]] = []
    for instruction in raw:
        if instruction.name in _SETUPS and instruction.start in stacks:
            assert instruction.target is not None
            outer = stacks[instruction.start]
            outer_region = outer[-1].region() if outer else None
            inside, handling = _Block(instruction.start, False), _Block(instruction.start, True)
            entry: Steps = [*HANDLER_ENTRY, (Op.JUMP, Label(instruction.target))]
            for block, steps in ((inside, entry), (handling, HANDLER_EXIT)):
                drafts = [Draft(op, arg, None, instruction.start, outer_region) for op, arg in steps]
                extra.append((block.region().target, drafts))
    return regions, extra


def _block_stacks(raw: list[RawInstruction]) -> dict[int, _Stack]:
    """Maps the offset of each reachable instruction to the blocks around it."""
    position = {instruction.start: index for index, instruction in enumerate(raw)}
    stacks: dict[int, _Stack] = {}
    work: list[tuple[int, _Stack]] = [(0, ())]
    while work:
        offset, stack = work.pop()
        if offset in stacks:
            if stacks[offset] != stack:
                raise MalformedCode(f"two block stacks at {offset}: {stacks[offset]} and {stack}")
            continue
        stacks[offset] = stack
        instruction = raw[position[offset]]
        after = stack
        if instruction.name in _SETUPS:
            assert instruction.target is not None
            work.append((instruction.target, (*stack, _Block(instruction.start, True))))
            after = (*stack, _Block(instruction.start, False))
        elif instruction.name in ("POP_BLOCK", "POP_EXCEPT"):
            after = stack[:-1]
            if not stack or stack[-1].is_handler != (instruction.name == "POP_EXCEPT"):
                raise MalformedCode(f"{instruction.name} at {offset} with the blocks {stack}")
        elif instruction.target is not None:
            work.append((instruction.target, stack))
        if instruction.name not in _ENDS:
            work.append((raw[position[offset] + 1].start, after))
    return stacks
