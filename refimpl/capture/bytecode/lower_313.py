"""Translation rules for CPython 3.13: NULLs above callables, fused loads and stores, TO_BOOL, SET_FUNCTION_ATTRIBUTE."""

from __future__ import annotations

import dis

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Lowering, Rule, SlotOp, Steps
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.bytecode.lower_312 import RULES_312
from refimpl.capture.bytecode.lower_common import FUNCTION_ATTRIBUTES, constant_argument, nothing

_CONVERSIONS = ("", "s", "r", "a")


def _load_global(low: Lowering, raw: RawInstruction) -> Steps:
    load: Steps = [(Op.LOAD_GLOBAL, low.code.co_names[raw.arg >> 1])]
    return [*load, (SlotOp.PUSH_NULL, None)] if raw.arg & 1 else load


def _load_attr(low: Lowering, raw: RawInstruction) -> Steps:
    load: Steps = [(Op.LOAD_ATTR, low.code.co_names[raw.arg >> 1])]
    return [*load, (SlotOp.PUSH_NULL, None)] if raw.arg & 1 else load


def _load_super_attr(low: Lowering, raw: RawInstruction) -> Steps:
    load: Steps = [(Op.LOAD_SUPER_ATTR, (low.code.co_names[raw.arg >> 2], bool(raw.arg & 2)))]
    return [*load, (SlotOp.PUSH_NULL, None)] if raw.arg & 1 else load


def _pair(first: Op, second: Op) -> Rule:
    return lambda low, raw: [(first, raw.arg >> 4), (second, raw.arg & 15)]


def _for_iter(low: Lowering, raw: RawInstruction) -> Steps:
    assert raw.target is not None
    return [(Op.FOR_ITER, low.after(raw.target, "END_FOR", "POP_TOP"))]


RULES_313: dict[str, Rule] = {
    **RULES_312,
    "LOAD_GLOBAL": _load_global,
    "LOAD_ATTR": _load_attr,
    "LOAD_SUPER_ATTR": _load_super_attr,
    "LOAD_FAST_LOAD_FAST": _pair(Op.LOAD_FAST, Op.LOAD_FAST),
    "STORE_FAST_LOAD_FAST": _pair(Op.STORE_FAST, Op.LOAD_FAST),
    "STORE_FAST_STORE_FAST": _pair(Op.STORE_FAST, Op.STORE_FAST),
    "TO_BOOL": nothing,  # the instruction that pops the value asks for its truth
    "COMPARE_OP": lambda low, raw: [(Op.COMPARE, dis.cmp_op[raw.arg >> 5])],
    "CONVERT_VALUE": lambda low, raw: [(Op.CONVERT, _CONVERSIONS[raw.arg])],
    "FORMAT_SIMPLE": constant_argument(Op.FORMAT, False),
    "FORMAT_WITH_SPEC": constant_argument(Op.FORMAT, True),
    "CALL": lambda low, raw: [(SlotOp.CALL, (raw.arg + 2, False))],
    "CALL_KW": lambda low, raw: [(SlotOp.CALL, (raw.arg + 2, True))],
    "MAKE_FUNCTION": constant_argument(Op.MAKE_FUNCTION, False),
    "SET_FUNCTION_ATTRIBUTE": lambda low, raw: [(Op.SET_FUNCTION_ATTRIBUTE, FUNCTION_ATTRIBUTES[raw.arg])],
    "FOR_ITER": _for_iter,
    "END_FOR": lambda low, raw: [(Op.POP, None)],
}
