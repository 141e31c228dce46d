"""Translation rules for CPython 3.10: block stack instead of an exception table, three slots per exception, no NULL below
callables.
"""

from __future__ import annotations

import dis

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Lowering, Rule, SlotOp, Steps
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.bytecode.lower_common import (
    COMMON,
    call_function_ex,
    constant_argument,
    jump,
    jump_or_pop,
    label,
    make_function,
    named,
    nothing,
    numbered,
    plain,
)

_OPERATORS = {
    "ADD": "+", "AND": "&", "FLOOR_DIVIDE": "//", "LSHIFT": "<<", "MATRIX_MULTIPLY": "@", "MODULO": "%", "MULTIPLY": "*",
    "OR": "|", "POWER": "**", "RSHIFT": ">>", "SUBTRACT": "-", "TRUE_DIVIDE": "/", "XOR": "^",
}  # fmt: skip
_IS_FOUND: Steps = [(Op.COPY, 1), (Op.LOAD_CONST, None), (Op.IS, True)]
# Enters a handler: [exception] -> traceback, value and type of the exception handled before, then of this one. Ours are the types
HANDLER_ENTRY: Steps = [
    (SlotOp.PUSH_NULL, None), (SlotOp.PUSH_NULL, None), (Op.SWAP, 3), (Op.PUSH_EXC_INFO, None),
    (SlotOp.PUSH_NULL, None), (Op.SWAP, 2), (Op.COPY, 1),
]  # fmt: skip
HANDLED_SLOTS = 3
# Leaves a handler by an exception: [..., type handled before, exception raised in the handler]
HANDLER_EXIT: Steps = [(Op.SWAP, 2), (Op.POP_EXCEPT, None), (Op.RERAISE, None)]


def _cell(op: Op) -> Rule:
    return lambda low, raw: [(op, low.slot_of_cell(raw.arg))]


def _load_classderef(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_LOCALS, None), (Op.LOAD_FROM_DICT_OR_DEREF, low.slot_of_cell(raw.arg))]


def _call(slots_of_callable: int, *, has_names: bool = False) -> Rule:
    return lambda low, raw: [(SlotOp.CALL, (raw.arg + slots_of_callable, has_names))]


def _load_method(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_ATTR, low.code.co_names[raw.arg]), (SlotOp.PUSH_NULL, None), (Op.SWAP, 2)]


def _jump_if_not_exc_match(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.CHECK_EXC_MATCH, None), (Op.SWAP, 2), (Op.POP, None), (Op.POP_JUMP_IF_FALSE, label(raw))]


def _yield_from(low: Lowering, raw: RawInstruction) -> Steps:
    from_here, after = label_at(raw, 0), label_at(raw, 3)
    return [(Op.SEND, after), (Op.YIELD_VALUE, True), (Op.JUMP, from_here)]


def label_at(raw: RawInstruction, step: int):
    """The label of a step that the instruction becomes."""
    return label(RawInstruction(raw.start, raw.name, raw.arg, raw.line, raw.start))._replace(step=step)


def _setup_finally(low: Lowering, raw: RawInstruction) -> Steps:
    return [(SlotOp.MARK_BLOCK, (raw.start, 0))]


def _setup_with(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.WITH_ENTER, None), (SlotOp.MARK_BLOCK, (raw.start, 1))]


def _rotation(count: int) -> Rule:
    return lambda low, raw: [(SlotOp.ROTATE, count)]


RULES_310: dict[str, Rule] = {
    **COMMON,
    **{f"BINARY_{name}": constant_argument(Op.BINARY, sign) for name, sign in _OPERATORS.items()},
    **{f"INPLACE_{name}": constant_argument(Op.BINARY, f"{sign}=") for name, sign in _OPERATORS.items()},
    "UNARY_POSITIVE": constant_argument(Op.UNARY, "+"),
    "ROT_TWO": _rotation(2),
    "ROT_THREE": _rotation(3),
    "ROT_FOUR": _rotation(4),
    "ROT_N": numbered(SlotOp.ROTATE),
    "DUP_TOP": constant_argument(Op.COPY, 1),
    "DUP_TOP_TWO": lambda low, raw: [(Op.COPY, 2), (Op.COPY, 2)],
    "COMPARE_OP": lambda low, raw: [(Op.COMPARE, dis.cmp_op[raw.arg])],
    "LOAD_GLOBAL": named(Op.LOAD_GLOBAL),
    "LOAD_CLOSURE": _cell(Op.LOAD_FAST),
    "LOAD_DEREF": _cell(Op.LOAD_DEREF),
    "STORE_DEREF": _cell(Op.STORE_DEREF),
    "DELETE_DEREF": _cell(Op.DELETE_DEREF),
    "LOAD_CLASSDEREF": _load_classderef,
    "LOAD_ATTR": named(Op.LOAD_ATTR),
    "LOAD_METHOD": _load_method,
    "CALL_METHOD": _call(2),
    "CALL_FUNCTION": _call(1),
    "CALL_FUNCTION_KW": _call(1, has_names=True),
    "CALL_FUNCTION_EX": call_function_ex(1),
    "MAKE_FUNCTION": make_function(has_qualname=True),
    "LIST_TO_TUPLE": plain(Op.LIST_TO_TUPLE),
    "IMPORT_STAR": lambda low, raw: [(Op.INTRINSIC_1, "import_star"), (Op.POP, None)],
    "PRINT_EXPR": lambda low, raw: [(Op.INTRINSIC_1, "print"), (Op.POP, None)],
    "JUMP_ABSOLUTE": jump(Op.JUMP),
    "POP_JUMP_IF_TRUE": jump(Op.POP_JUMP_IF_TRUE),
    "POP_JUMP_IF_FALSE": jump(Op.POP_JUMP_IF_FALSE),
    "JUMP_IF_TRUE_OR_POP": jump_or_pop(Op.POP_JUMP_IF_TRUE),
    "JUMP_IF_FALSE_OR_POP": jump_or_pop(Op.POP_JUMP_IF_FALSE),
    "JUMP_IF_NOT_EXC_MATCH": _jump_if_not_exc_match,
    "FOR_ITER": jump(Op.FOR_ITER),
    "GEN_START": nothing,
    "YIELD_VALUE": constant_argument(Op.YIELD_VALUE, False),
    "YIELD_FROM": _yield_from,
    "SETUP_FINALLY": _setup_finally,
    "SETUP_WITH": _setup_with,
    "POP_BLOCK": nothing,
    "POP_EXCEPT": lambda low, raw: [(Op.POP_EXCEPT, None), (Op.POP, None), (Op.POP, None)],
    "WITH_EXCEPT_START": constant_argument(Op.WITH_EXCEPT_START, 7),
    "MATCH_KEYS": lambda low, raw: [(Op.MATCH_KEYS, None), *_IS_FOUND],
    "MATCH_CLASS": lambda low, raw: [(Op.MATCH_CLASS, raw.arg), *_IS_FOUND],
    "COPY_DICT_WITHOUT_KEYS": plain(Op.DICT_WITHOUT_KEYS),
}
