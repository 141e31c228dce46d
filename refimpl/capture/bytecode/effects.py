"""The stack effect of each instruction: how many values it pops and pushes. `verify` and `slots` use this table.

Counterpart: dis.stack_effect
"""

from __future__ import annotations

from typing import Any

from refimpl.capture.bytecode.instructions import Op

_FIXED: dict[Op, tuple[int, int]] = {
    Op.POP: (1, 0), Op.LOAD_CONST: (0, 1),
    Op.LOAD_FAST: (0, 1), Op.STORE_FAST: (1, 0), Op.DELETE_FAST: (0, 0), Op.LOAD_FAST_AND_CLEAR: (0, 1), Op.MAKE_CELL: (0, 0),
    Op.LOAD_DEREF: (0, 1), Op.STORE_DEREF: (1, 0), Op.DELETE_DEREF: (0, 0), Op.LOAD_FROM_DICT_OR_DEREF: (1, 1),
    Op.LOAD_GLOBAL: (0, 1), Op.STORE_GLOBAL: (1, 0), Op.DELETE_GLOBAL: (0, 0),
    Op.LOAD_NAME: (0, 1), Op.STORE_NAME: (1, 0), Op.DELETE_NAME: (0, 0), Op.LOAD_LOCALS: (0, 1),
    Op.LOAD_FROM_DICT_OR_GLOBALS: (1, 1),
    Op.LOAD_ATTR: (1, 1), Op.STORE_ATTR: (2, 0), Op.DELETE_ATTR: (1, 0), Op.LOAD_SUPER_ATTR: (3, 1),
    Op.BINARY_SUBSCR: (2, 1), Op.STORE_SUBSCR: (3, 0), Op.DELETE_SUBSCR: (2, 0),
    Op.UNARY: (1, 1), Op.BINARY: (2, 1), Op.COMPARE: (2, 1), Op.IS: (2, 1), Op.CONTAINS: (2, 1),
    Op.LIST_APPEND: (1, 0), Op.SET_ADD: (1, 0), Op.MAP_ADD: (2, 0), Op.LIST_EXTEND: (1, 0), Op.SET_UPDATE: (1, 0),
    Op.DICT_UPDATE: (1, 0), Op.DICT_MERGE: (1, 0), Op.LIST_TO_TUPLE: (1, 1), Op.CONVERT: (1, 1),
    Op.JUMP: (0, 0), Op.POP_JUMP_IF_TRUE: (1, 0), Op.POP_JUMP_IF_FALSE: (1, 0), Op.POP_JUMP_IF_NONE: (1, 0),
    Op.POP_JUMP_IF_NOT_NONE: (1, 0), Op.GET_ITER: (1, 1), Op.FOR_ITER: (0, 1), Op.RETURN_VALUE: (1, 0),
    Op.YIELD_VALUE: (1, 1), Op.GET_YIELD_FROM_ITER: (1, 1), Op.SEND: (1, 1),
    Op.SET_FUNCTION_ATTRIBUTE: (2, 1), Op.LOAD_BUILD_CLASS: (0, 1), Op.IMPORT_NAME: (2, 1), Op.IMPORT_FROM: (0, 1),
    Op.RERAISE: (1, 0), Op.PUSH_EXC_INFO: (1, 2), Op.POP_EXCEPT: (1, 0), Op.CHECK_EXC_MATCH: (1, 1),
    Op.CHECK_GROUP_MATCH: (2, 2), Op.PREPARE_RERAISE_STAR: (2, 1), Op.CLEANUP_THROW: (3, 2), Op.STOP_ITERATION_ERROR: (1, 1),
    Op.WITH_ENTER: (1, 2), Op.WITH_EXCEPT_START: (0, 1),
    Op.MATCH_MAPPING: (0, 1), Op.MATCH_SEQUENCE: (0, 1), Op.MATCH_KEYS: (0, 1), Op.MATCH_CLASS: (3, 1), Op.GET_LEN: (0, 1),
    Op.DICT_WITHOUT_KEYS: (1, 1), Op.STATEMENT: (0, 0), Op.INTRINSIC_1: (1, 1), Op.INTRINSIC_2: (2, 1),
}  # fmt: skip


def effect(op: Op, arg: Any) -> tuple[int, int]:
    """Values popped and pushed when the instruction does not jump. COPY and SWAP are not in the table: they move values."""
    fixed = _FIXED.get(op)
    if fixed is not None:
        return fixed
    match op:
        case Op.BUILD_TUPLE | Op.BUILD_LIST | Op.BUILD_SET | Op.BUILD_SLICE | Op.BUILD_STRING:
            return arg, 1
        case Op.BUILD_MAP:
            return 2 * arg, 1
        case Op.BUILD_CONST_KEY_MAP:
            return arg + 1, 1
        case Op.UNPACK_SEQUENCE:
            return 1, arg
        case Op.UNPACK_EX:
            return 1, arg[0] + arg[1] + 1
        case Op.FORMAT:
            return 1 + arg, 1
        case Op.CALL:
            return arg + 1, 1
        case Op.CALL_KW:
            return arg + 2, 1
        case Op.CALL_EX:
            return 2 + arg, 1
        case Op.MAKE_FUNCTION:
            return 1 + arg, 1
        case Op.RAISE:
            return arg, 0
        case Op.COPY:
            return 0, 1
        case Op.SWAP:
            return 0, 0
        case _:
            raise AssertionError(f"{op!r} has no effect on the stack")


def jump_effect(op: Op) -> tuple[int, int]:
    """Values popped and pushed when the instruction jumps."""
    match op:
        case Op.FOR_ITER:
            return 1, 0
        case Op.SEND:
            return 2, 1
        case _:
            return effect(op, None)
