"""Checks normalised code: stack depths agree on all paths, jumps and handlers have targets, slots exist."""

from __future__ import annotations

from refimpl.capture.bytecode.effects import effect, jump_effect
from refimpl.capture.bytecode.errors import MalformedCode
from refimpl.capture.bytecode.instructions import ENDS, JUMPS, NormalizedCode, Op

_SLOT_OPERATIONS = frozenset(
    {
        Op.LOAD_FAST, Op.STORE_FAST, Op.DELETE_FAST, Op.LOAD_FAST_AND_CLEAR, Op.MAKE_CELL, Op.LOAD_DEREF, Op.STORE_DEREF,
        Op.DELETE_DEREF, Op.LOAD_FROM_DICT_OR_DEREF,
    }
)  # fmt: skip


def verify(code: NormalizedCode) -> None:
    """Raises MalformedCode where a check fails."""
    depths: dict[int, int] = {}
    work = [(0, 0)]
    while work:
        index, depth = work.pop()
        if not 0 <= index < len(code.instructions):
            raise MalformedCode(f"{code.name}: a way leads to {index} of {len(code.instructions)} instructions")
        if index in depths:
            continue
        depths[index] = depth
        instruction = code.instructions[index]
        taken, put = effect(instruction.op, None if instruction.op in JUMPS else instruction.arg)
        reach = instruction.arg if instruction.op in (Op.COPY, Op.SWAP) else taken
        if depth < reach:
            raise MalformedCode(f"{code.name}: {index} {instruction} takes {reach} of {depth} values")
        if instruction.op in _SLOT_OPERATIONS and not 0 <= instruction.arg < len(code.slots):
            raise MalformedCode(f"{code.name}: {index} {instruction} of {len(code.slots)} slots")
        ways = [] if instruction.op in ENDS else [(index + 1, depth - taken + put)]
        if instruction.op in JUMPS:
            taken, put = jump_effect(instruction.op)
            ways.append((instruction.arg, depth - taken + put))
        if instruction.handler is not None:
            if instruction.handler.depth > depth:
                raise MalformedCode(f"{code.name}: {index} {instruction} keeps more than {depth} values")
            ways.append((instruction.handler.target, instruction.handler.depth + 1))
        for target, target_depth in ways:
            if depths.get(target, target_depth) != target_depth:
                raise MalformedCode(
                    f"{code.name}: {target} is reached with {depths[target]} and with {target_depth} values"
                )
            work.append((target, target_depth))
