"""Translates a code object to a NormalizedCode, and caches it by code object.

Counterpart: torch/_dynamo/bytecode_transformation.py cleaned_instructions
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType

from refimpl.capture.bytecode.blocks_310 import regions_by_blocks
from refimpl.capture.bytecode.decode import RawInstruction, decode, protected_ranges
from refimpl.capture.bytecode.drafts import Draft, Label, Lowering, Region, Rule, Steps, slot_names
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import CANNOT_RAISE, NormalizedCode, Op
from refimpl.capture.bytecode.lower_310 import RULES_310
from refimpl.capture.bytecode.lower_311 import RULES_311
from refimpl.capture.bytecode.lower_312 import RULES_312
from refimpl.capture.bytecode.lower_313 import RULES_313
from refimpl.capture.bytecode.slots import without_empty_slots

_VERSION = sys.version_info[:2]
_RULES: dict[tuple[int, int], dict[str, Rule]] = {
    (3, 10): RULES_310,
    (3, 11): RULES_311,
    (3, 12): RULES_312,
    (3, 13): RULES_313,
}
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_BLOCKS_ON_STACK = _VERSION == (3, 10)

# Keyed by the identity of the code object, which the value keeps alive: equal code objects of two functions are different places
# for the user. Oldest first; the size is limited for programs that keep making code.
_KNOWN: dict[int, NormalizedCode] = {}
_MOST_KNOWN = 8192


def normalize(code: CodeType) -> NormalizedCode:
    """The code object in our instruction set; the same object each time.

    Raises UnsupportedCode for async code and other versions of Python, MalformedCode where the bytecode is not CPython's.
    """
    known = _KNOWN.get(id(code))
    if known is not None:
        return known
    made = _normalized(code)
    while len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.pop(next(iter(_KNOWN)), None)
    return _KNOWN.setdefault(id(code), made)


def _normalized(code: CodeType) -> NormalizedCode:
    rules = _RULES.get((_VERSION[0], _VERSION[1]))
    if rules is None:
        raise UnsupportedCode(code, f"the bytecode of Python {_VERSION[0]}.{_VERSION[1]} is not known")
    if code.co_flags & _ASYNC:
        raise UnsupportedCode(code, "async functions are not interpreted")
    raw = decode(code)
    low = Lowering(code, raw)
    regions, extra = regions_by_blocks(raw) if _BLOCKS_ON_STACK else (_table_regions(code, raw), [])
    drafts: list[Draft] = []
    first: dict[int, int] = {}  # start of a label -> its first draft
    drafts += [Draft(op, arg, None, 0, None) for op, arg in _prologue(low)]
    for instruction in raw:
        rule = rules.get(instruction.name)
        if rule is None:
            raise UnsupportedCode(code, f"{instruction.name} is not known", instruction.line)
        region = regions.get(instruction.start)
        first[instruction.start] = len(drafts)
        for op, arg in rule(low, instruction):
            drafts.append(Draft(op, arg, instruction.line, instruction.start, None if op in CANNOT_RAISE else region))
    for label, steps_of_block in extra:
        first[label.start] = len(drafts)
        drafts += steps_of_block
    slots = slot_names(code)
    return NormalizedCode(
        code=code,
        instructions=without_empty_slots(drafts, first),
        slots=slots,
        cells=frozenset(slots.index(name) for name in code.co_cellvars),
        first_free=len(slots) - len(code.co_freevars),
        is_generator=bool(code.co_flags & inspect.CO_GENERATOR),
    )


def _prologue(low: Lowering) -> Steps:
    """3.10 makes the cells together with the frame, later versions by instructions."""
    if not _BLOCKS_ON_STACK:
        return []
    return [(Op.MAKE_CELL, low.slot_of_cell(index)) for index in range(len(low.code.co_cellvars))]


def _table_regions(code: CodeType, raw: list[RawInstruction]) -> dict[int, Region]:
    regions: dict[int, Region] = {}
    ranges = protected_ranges(code)
    for instruction in raw:
        for entry in ranges:
            if entry.start <= instruction.start < entry.end:
                regions[instruction.start] = Region(Label(entry.target), entry.depth, entry.keeps_position)
    return regions
