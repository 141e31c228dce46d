"""Removes the stack slots without values from drafts, so that the instructions that remain move values only.

The stack is simulated on every path through the code, as one flag per slot: does it hold a value? CPython's compiler keeps the
flags the same on every path to an instruction. Counts, depths and rotations are then computed anew over the values alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from refimpl.capture.bytecode.drafts import Draft, Label, Region, SlotOp
from refimpl.capture.bytecode.effects import effect, jump_effect
from refimpl.capture.bytecode.errors import MalformedCode
from refimpl.capture.bytecode.instructions import ENDS, JUMPS, Handler, Instruction, Op

_Shape = tuple[bool, ...]
# Operations whose argument is a depth below their operands.
_DEPTHS = frozenset(
    {Op.LIST_APPEND, Op.SET_ADD, Op.MAP_ADD, Op.LIST_EXTEND, Op.SET_UPDATE, Op.DICT_UPDATE, Op.DICT_MERGE}
)


@dataclass(frozen=True, slots=True)
class _Lowered:
    """The instructions that a draft becomes. The first one that jumps has the label as its argument."""

    steps: list[tuple[Op, Any]]
    after: _Shape


class _Elimination:
    def __init__(self, drafts: list[Draft], starts: dict[int, int]) -> None:
        self.drafts = drafts
        self.starts = starts
        self.depths: dict[int, int] = {}  # block of 3.10 -> depth, in slots
        self.shapes: dict[int, _Shape] = {}
        self.lowered: dict[int, _Lowered] = {}
        self.handlers: dict[int, tuple[int, int]] = {}  # draft -> (draft of its handler, number of values that stay)

    def index_of(self, label: Label) -> int:
        """The index of the draft with this label."""
        return self.starts[label.start] + label.step

    def run(self) -> None:
        """Follows all paths from the first draft."""
        work: list[tuple[int, _Shape]] = [(0, ())]
        while work:
            index, shape = work.pop()
            known = self.shapes.get(index)
            if known is not None:
                if known != shape:
                    raise MalformedCode(f"two stacks before {self.drafts[index]}: {known} and {shape}")
                continue
            self.shapes[index] = shape
            draft = self.drafts[index]
            if draft.region is not None:
                work.append(self._handler(index, draft.region, shape))
            lowered = self.lowered[index] = self._lower(draft, shape)
            if draft.op in JUMPS:
                work.append((self.index_of(draft.arg), self._after_jump(draft, shape)))
            if draft.op not in ENDS:
                work.append((index + 1, lowered.after))

    def _handler(self, index: int, region: Region, shape: _Shape) -> tuple[int, _Shape]:
        depth = region.depth + (0 if region.block is None else self.depths[region.block])
        if depth > len(shape):
            raise MalformedCode(f"{self.drafts[index]} keeps {depth} of {len(shape)} slots for its handler")
        kept = shape[:depth]
        target = self.index_of(region.target)
        self.handlers[index] = target, sum(kept)
        return target, (*kept, False, True) if region.keeps_position else (*kept, True)

    def _after_jump(self, draft: Draft, shape: _Shape) -> _Shape:
        assert isinstance(draft.op, Op)
        taken, put = jump_effect(draft.op)
        return (*shape[: len(shape) - taken], *[True] * put)

    def _lower(self, draft: Draft, shape: _Shape) -> _Lowered:
        op, arg = draft.op, draft.arg
        match op:
            case SlotOp.PUSH_NULL:
                return _Lowered([], (*shape, False))
            case SlotOp.MARK_BLOCK:
                block, above = arg
                self.depths[block] = len(shape) - above
                return _Lowered([], shape)
            case SlotOp.ROTATE:
                return _rotate(shape, arg)
            case SlotOp.CALL:
                return _call(shape, *arg)
            case Op.POP if not shape[-1]:
                return _Lowered([], shape[:-1])
            case Op.COPY:
                steps = [(Op.COPY, sum(shape[-arg:]))] if shape[-arg] else []
                return _Lowered(steps, (*shape, shape[-arg]))
            case Op.SWAP:
                return _swap(shape, arg)
            case SlotOp.CALL_EX:
                slots, has_keywords = arg
                return _Lowered([(Op.CALL_EX, has_keywords)], (*shape[:-slots], True))
            case Op.WITH_EXCEPT_START:
                return _Lowered([(op, sum(shape[-arg:]))], (*shape, True))
            case SlotOp():
                raise AssertionError(op)
            case _:
                return _ordinary(op, arg, shape, draft)


def _ordinary(op: Op, arg: Any, shape: _Shape, draft: Draft) -> _Lowered:
    taken, put = effect(op, None if op in JUMPS else arg)
    rest = shape[: len(shape) - taken]
    if len(shape) < taken or not all(shape[len(rest) :]):
        raise MalformedCode(f"{draft} takes {taken} values of {shape}")
    if op in _DEPTHS:
        arg = sum(rest[-arg:])
    return _Lowered([(op, arg)], (*rest, *[True] * put))


def _rotate(shape: _Shape, count: int) -> _Lowered:
    """Moves the top below `count` - 1 slots."""
    below = shape[-count:-1]
    after = (*shape[:-count], shape[-1], *below)
    return _Lowered(list(_sink(sum(below) + 1)) if shape[-1] else [], after)


def _sink(count: int) -> Iterator[tuple[Op, Any]]:
    """Moves the top below `count` - 1 values, by swaps."""
    for depth in range(count, 1, -1):
        yield Op.SWAP, depth


def _swap(shape: _Shape, count: int) -> _Lowered:
    between = shape[-count + 1 : -1]
    after = (*shape[:-count], shape[-1], *between, shape[-count])
    match shape[-1], shape[-count]:
        case True, True:
            steps = [(Op.SWAP, sum(between) + 2)]
        case True, False:  # moves the top down past the values between
            steps = list(_sink(sum(between) + 1))
        case False, True:  # moves the deep value up
            steps = list(reversed(list(_sink(sum(between) + 1))))
        case _:
            steps = []
    return _Lowered(steps, after)


def _call(shape: _Shape, slots: int, has_names: bool) -> _Lowered:
    operands = shape[len(shape) - slots - has_names :]
    arguments = sum(operands) - 1 - has_names  # one is the callable
    op = Op.CALL_KW if has_names else Op.CALL
    return _Lowered([(op, arguments)], (*shape[: len(shape) - slots - has_names], True))


def without_empty_slots(drafts: list[Draft], starts: dict[int, int]) -> tuple[Instruction, ...]:
    """The reachable drafts as instructions. `starts`: first draft of each label. Raises MalformedCode for stacks that do not
    fit together.
    """
    elimination = _Elimination(drafts, starts)
    elimination.run()
    first: list[int] = []  # draft -> its first instruction, or that of the next draft
    count = 0
    for index in range(len(drafts)):
        first.append(count)
        lowered = elimination.lowered.get(index)
        count += 0 if lowered is None else len(lowered.steps)
    instructions: list[Instruction] = []
    for index, draft in enumerate(drafts):
        lowered = elimination.lowered.get(index)
        if lowered is None or not lowered.steps:
            continue
        found = elimination.handlers.get(index)
        handler = None if found is None else Handler(first[found[0]], found[1])
        for op, arg in lowered.steps:
            target = first[elimination.index_of(arg)] if op in JUMPS else arg
            instructions.append(Instruction(op, target, draft.line, draft.offset, handler))
    return tuple(instructions)
