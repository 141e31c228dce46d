"""The stack itself, variables and names, jumps."""

from __future__ import annotations

from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import UNBOUND, FrameState, Then
from refimpl.capture.interpreter.signals import Enter


def _pop(domain: Domain, frame: FrameState, arg: Any) -> None:
    frame.stack.pop()


def _copy(domain: Domain, frame: FrameState, depth: int) -> None:
    frame.stack.append(frame.stack[-depth])


def _swap(domain: Domain, frame: FrameState, depth: int) -> None:
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def _load_const(domain: Domain, frame: FrameState, value: Any) -> None:
    frame.stack.append(domain.constant(value))


# ------------------------------------------------------------------------------------------------------------ variables


def _load_fast(domain: Domain, frame: FrameState, slot: int) -> None:
    value = frame.slots[slot]
    if value is UNBOUND:
        domain.unbound("local", frame.code.slots[slot])
    frame.stack.append(value)


def _store_fast(domain: Domain, frame: FrameState, slot: int) -> None:
    if frame.slots[slot] is not UNBOUND:
        domain.drops(frame, slot)
    value = frame.slots[slot] = frame.stack.pop()
    domain.names(frame, slot, value)


def _delete_fast(domain: Domain, frame: FrameState, slot: int) -> None:
    if frame.slots[slot] is UNBOUND:
        domain.unbound("local", frame.code.slots[slot])
    domain.drops(frame, slot)
    frame.slots[slot] = UNBOUND


def _load_fast_and_clear(domain: Domain, frame: FrameState, slot: int) -> None:
    frame.stack.append(frame.slots[slot])
    frame.slots[slot] = UNBOUND


def _make_cell(domain: Domain, frame: FrameState, slot: int) -> None:
    frame.slots[slot] = domain.make_cell(frame.slots[slot])


def _load_deref(domain: Domain, frame: FrameState, slot: int) -> None:
    value = domain.cell_value(frame.slots[slot])
    if value is UNBOUND:
        _unbound_cell(domain, frame, slot)
    frame.stack.append(value)


def _store_deref(domain: Domain, frame: FrameState, slot: int) -> None:
    value = frame.stack.pop()
    domain.set_cell(frame.slots[slot], value)
    domain.names(frame, slot, value)


def _delete_deref(domain: Domain, frame: FrameState, slot: int) -> None:
    if domain.cell_value(frame.slots[slot]) is UNBOUND:
        _unbound_cell(domain, frame, slot)
    domain.set_cell(frame.slots[slot], UNBOUND)


def _load_from_dict_or_deref(domain: Domain, frame: FrameState, slot: int) -> None:
    value = domain.load_from(frame.stack.pop(), frame.code.slots[slot])
    if value is UNBOUND:
        value = domain.cell_value(frame.slots[slot])
    if value is UNBOUND:
        _unbound_cell(domain, frame, slot)
    frame.stack.append(value)


def _unbound_cell(domain: Domain, frame: FrameState, slot: int) -> None:
    domain.unbound("free" if slot >= frame.code.first_free else "local", frame.code.slots[slot])


# ---------------------------------------------------------------------------------------------------------------- names


def _load_global(domain: Domain, frame: FrameState, name: str) -> None:
    value = domain.load_global(frame, name)
    if value is UNBOUND:
        domain.unbound("name", name)
    frame.stack.append(value)


def _store_global(domain: Domain, frame: FrameState, name: str) -> None:
    domain.store_global(frame, name, frame.stack.pop())


def _delete_global(domain: Domain, frame: FrameState, name: str) -> None:
    try:
        domain.store_global(frame, name, UNBOUND)
    except KeyError:
        domain.unbound("name", name)


def _load_name(domain: Domain, frame: FrameState, name: str) -> None:
    frame.stack.append(domain.local_names(frame))
    _load_from_dict_or_globals(domain, frame, name)


def _load_from_dict_or_globals(domain: Domain, frame: FrameState, name: str) -> None:
    value = domain.load_from(frame.stack.pop(), name)
    if value is UNBOUND:
        value = domain.load_global(frame, name)
    if value is UNBOUND:
        domain.unbound("name", name)
    frame.stack.append(value)


def _store_name(domain: Domain, frame: FrameState, name: str) -> None:
    domain.store_name(frame, name, frame.stack.pop())


def _delete_name(domain: Domain, frame: FrameState, name: str) -> None:
    try:
        domain.store_name(frame, name, UNBOUND)
    except KeyError:
        domain.unbound("name", name)


def _load_locals(domain: Domain, frame: FrameState, arg: Any) -> None:
    frame.stack.append(domain.local_names(frame))


# ---------------------------------------------------------------------------------------------------------------- jumps


def _jump(domain: Domain, frame: FrameState, target: int) -> None:
    frame.offset = target


def _pop_jump_if_true(domain: Domain, frame: FrameState, target: int) -> Enter | None:
    value = frame.stack.pop()
    message = _message_of_assert(frame)
    if message is not None and domain.asserts(value, message):
        frame.offset = target
        return None
    return _jump_if(domain.truth(value), True, frame, target)


def _message_of_assert(frame: FrameState) -> str | None:
    """The message if the instruction is the jump of an `assert`: what follows loads AssertionError. None for other jumps."""
    following = list(frame.code.instructions[frame.offset : frame.offset + 2])
    if not following or following[0].op is not Op.LOAD_CONST or following[0].arg is not AssertionError:
        return None
    is_text = len(following) > 1 and following[1].op is Op.LOAD_CONST and isinstance(following[1].arg, str)
    return following[1].arg if is_text else "assertion error"


def _pop_jump_if_false(domain: Domain, frame: FrameState, target: int) -> Enter | None:
    return _jump_if(domain.truth(frame.stack.pop()), False, frame, target)


def _jump_if(truth: bool | Enter, wanted: bool, frame: FrameState, target: int) -> Enter | None:
    if truth is wanted:
        frame.offset = target
    elif type(truth) is Enter:  # the frame returns a bool, and the instruction then jumps
        frame.offset -= 1
        return truth.for_(Then.PUSH)
    return None


def _pop_jump_if_none(domain: Domain, frame: FrameState, target: int) -> None:
    if domain.is_none(frame.stack.pop()):
        frame.offset = target


def _pop_jump_if_not_none(domain: Domain, frame: FrameState, target: int) -> None:
    if not domain.is_none(frame.stack.pop()):
        frame.offset = target


VARIABLE_OPERATIONS = {
    Op.POP: _pop,
    Op.COPY: _copy,
    Op.SWAP: _swap,
    Op.LOAD_CONST: _load_const,
    Op.LOAD_FAST: _load_fast,
    Op.STORE_FAST: _store_fast,
    Op.DELETE_FAST: _delete_fast,
    Op.LOAD_FAST_AND_CLEAR: _load_fast_and_clear,
    Op.MAKE_CELL: _make_cell,
    Op.LOAD_DEREF: _load_deref,
    Op.STORE_DEREF: _store_deref,
    Op.DELETE_DEREF: _delete_deref,
    Op.LOAD_FROM_DICT_OR_DEREF: _load_from_dict_or_deref,
    Op.LOAD_GLOBAL: _load_global,
    Op.STORE_GLOBAL: _store_global,
    Op.DELETE_GLOBAL: _delete_global,
    Op.LOAD_NAME: _load_name,
    Op.STORE_NAME: _store_name,
    Op.DELETE_NAME: _delete_name,
    Op.LOAD_LOCALS: _load_locals,
    Op.LOAD_FROM_DICT_OR_GLOBALS: _load_from_dict_or_globals,
    Op.JUMP: _jump,
    Op.POP_JUMP_IF_TRUE: _pop_jump_if_true,
    Op.POP_JUMP_IF_FALSE: _pop_jump_if_false,
    Op.POP_JUMP_IF_NONE: _pop_jump_if_none,
    Op.POP_JUMP_IF_NOT_NONE: _pop_jump_if_not_none,
}
