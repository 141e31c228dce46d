"""Translation rules for CPython 3.11: NULLs below callables, KW_NAMES, an exception table."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import Any

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Lowering, Rule, SlotOp, Steps
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.bytecode.lower_common import (
    COMMON,
    call_function_ex,
    constant_argument,
    jump,
    jump_or_pop,
    make_function,
    named,
    nothing,
    numbered,
    plain,
)

_BINARY_OPERATORS: Sequence[Any] = getattr(dis, "_nb_ops", ())  # exists from 3.11 on


def binary_op(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.BINARY, _BINARY_OPERATORS[raw.arg][1])]


def load_global(low: Lowering, raw: RawInstruction) -> Steps:
    null: Steps = [(SlotOp.PUSH_NULL, None)] if raw.arg & 1 else []
    return [*null, (Op.LOAD_GLOBAL, low.code.co_names[raw.arg >> 1])]


def _load_method(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_ATTR, low.code.co_names[raw.arg]), (SlotOp.PUSH_NULL, None), (Op.SWAP, 2)]


def load_classderef(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_LOCALS, None), (Op.LOAD_FROM_DICT_OR_DEREF, raw.arg)]


def call(low: Lowering, raw: RawInstruction) -> Steps:
    """Pops [NULL, function] or [function, first argument], then the arguments. A KW_NAMES before it has pushed the keyword
    names.
    """
    return [(SlotOp.CALL, (raw.arg + 2, low.follows(raw, "KW_NAMES") or _precall_has_names(low, raw)))]


def _precall_has_names(low: Lowering, raw: RawInstruction) -> bool:
    if not low.follows(raw, "PRECALL"):
        return False
    precall = next(i for i in reversed(low.raw) if i.start < raw.start)
    return low.follows(precall, "KW_NAMES")


def kw_names(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_CONST, low.code.co_consts[raw.arg])]


def yield_value(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.YIELD_VALUE, low.follows(raw, "SEND"))]


def _jumps_both_ways(condition: str, op: Op) -> dict[str, Rule]:
    return {f"POP_JUMP_{way}_IF_{condition}": jump(op) for way in ("FORWARD", "BACKWARD")}


RULES_311: dict[str, Rule] = {
    **COMMON,
    "UNARY_POSITIVE": constant_argument(Op.UNARY, "+"),
    "RESUME": nothing,
    "PRECALL": nothing,
    "COPY_FREE_VARS": nothing,  # the function that makes the frame fills the slots of the closure
    "COPY": numbered(Op.COPY),
    "SWAP": numbered(Op.SWAP),
    "PUSH_NULL": lambda low, raw: [(SlotOp.PUSH_NULL, None)],
    "BINARY_OP": binary_op,
    "COMPARE_OP": lambda low, raw: [(Op.COMPARE, dis.cmp_op[raw.arg])],
    "LOAD_GLOBAL": load_global,
    "MAKE_CELL": numbered(Op.MAKE_CELL),
    "LOAD_CLOSURE": numbered(Op.LOAD_FAST),
    "LOAD_DEREF": numbered(Op.LOAD_DEREF),
    "STORE_DEREF": numbered(Op.STORE_DEREF),
    "DELETE_DEREF": numbered(Op.DELETE_DEREF),
    "LOAD_CLASSDEREF": load_classderef,
    "LOAD_ATTR": named(Op.LOAD_ATTR),
    "LOAD_METHOD": _load_method,
    "KW_NAMES": kw_names,
    "CALL": call,
    "CALL_FUNCTION_EX": call_function_ex(2),
    "MAKE_FUNCTION": make_function(has_qualname=False),
    "LIST_TO_TUPLE": plain(Op.LIST_TO_TUPLE),
    "IMPORT_STAR": lambda low, raw: [(Op.INTRINSIC_1, "import_star"), (Op.POP, None)],
    "PRINT_EXPR": lambda low, raw: [(Op.INTRINSIC_1, "print"), (Op.POP, None)],
    "JUMP_BACKWARD": jump(Op.JUMP),
    "JUMP_BACKWARD_NO_INTERRUPT": jump(Op.JUMP),
    "JUMP_IF_TRUE_OR_POP": jump_or_pop(Op.POP_JUMP_IF_TRUE),
    "JUMP_IF_FALSE_OR_POP": jump_or_pop(Op.POP_JUMP_IF_FALSE),
    **_jumps_both_ways("TRUE", Op.POP_JUMP_IF_TRUE),
    **_jumps_both_ways("FALSE", Op.POP_JUMP_IF_FALSE),
    **_jumps_both_ways("NONE", Op.POP_JUMP_IF_NONE),
    **_jumps_both_ways("NOT_NONE", Op.POP_JUMP_IF_NOT_NONE),
    "FOR_ITER": jump(Op.FOR_ITER),
    "RETURN_GENERATOR": constant_argument(Op.LOAD_CONST, None),  # a None for the POP_TOP that follows
    "YIELD_VALUE": yield_value,
    "SEND": jump(Op.SEND),
    "BEFORE_WITH": plain(Op.WITH_ENTER),
    "WITH_EXCEPT_START": constant_argument(Op.WITH_EXCEPT_START, 4),
    "PUSH_EXC_INFO": plain(Op.PUSH_EXC_INFO),
    "POP_EXCEPT": plain(Op.POP_EXCEPT),
    "CHECK_EXC_MATCH": plain(Op.CHECK_EXC_MATCH),
    "CHECK_EG_MATCH": plain(Op.CHECK_GROUP_MATCH),
    "PREP_RERAISE_STAR": plain(Op.PREPARE_RERAISE_STAR),
    "MATCH_KEYS": plain(Op.MATCH_KEYS),
    "MATCH_CLASS": numbered(Op.MATCH_CLASS),
}
