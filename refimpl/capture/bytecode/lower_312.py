"""Translation rules for CPython 3.12: methods by LOAD_ATTR, LOAD_SUPER_ATTR, slices, inlined comprehensions, intrinsics."""

from __future__ import annotations

import dis

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Lowering, Rule, SlotOp, Steps
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.bytecode.lower_311 import RULES_311
from refimpl.capture.bytecode.lower_common import jump, load_const, named, numbered, plain

# CPython's number of an intrinsic -> the interpreter's name for it. Code with another one is refused.
_UNARY = {
    1: "print", 2: "import_star", 3: "stop_iteration_error", 5: "+", 6: "list_to_tuple", 7: "typevar", 8: "paramspec",
    9: "typevartuple", 10: "subscript_generic",
}  # fmt: skip
_BINARY = {
    1: "prepare_reraise_star", 2: "typevar_with_bound", 4: "set_function_type_params",
}  # fmt: skip


def _load_attr(low: Lowering, raw: RawInstruction) -> Steps:
    load: Steps = [(Op.LOAD_ATTR, low.code.co_names[raw.arg >> 1])]
    return [*load, (SlotOp.PUSH_NULL, None), (Op.SWAP, 2)] if raw.arg & 1 else load


def load_super_attr(low: Lowering, raw: RawInstruction) -> Steps:
    load: Steps = [(Op.LOAD_SUPER_ATTR, (low.code.co_names[raw.arg >> 2], bool(raw.arg & 2)))]
    return [*load, (SlotOp.PUSH_NULL, None), (Op.SWAP, 2)] if raw.arg & 1 else load


def intrinsic_1(low: Lowering, raw: RawInstruction) -> Steps:
    match _UNARY.get(raw.arg):
        case None:
            return low.refuse(
                f"the intrinsic {raw.arg} (an async generator, or a declaration of types) is not interpreted", raw.line
            )
        case "+":
            return [(Op.UNARY, "+")]
        case "list_to_tuple":
            return [(Op.LIST_TO_TUPLE, None)]
        case "stop_iteration_error":
            return [(Op.STOP_ITERATION_ERROR, None)]
        case name:
            return [(Op.INTRINSIC_1, name)]


def intrinsic_2(low: Lowering, raw: RawInstruction) -> Steps:
    match _BINARY.get(raw.arg):
        case None:
            return low.refuse(f"the intrinsic {raw.arg} (a declaration of types) is not interpreted", raw.line)
        case "prepare_reraise_star":
            return [(Op.PREPARE_RERAISE_STAR, None)]
        case name:
            return [(Op.INTRINSIC_2, name)]


def _for_iter(low: Lowering, raw: RawInstruction) -> Steps:
    """The loop ends after END_FOR, which CPython executes only where it runs a generator without a call."""
    assert raw.target is not None
    return [(Op.FOR_ITER, low.after(raw.target, "END_FOR"))]


def send(low: Lowering, raw: RawInstruction) -> Steps:
    """SEND together with the END_SEND at its target, which pops the receiver."""
    assert raw.target is not None
    return [(Op.SEND, low.after(raw.target, "END_SEND"))]


RULES_312: dict[str, Rule] = {
    **RULES_311,
    "LOAD_ATTR": _load_attr,
    "LOAD_SUPER_ATTR": load_super_attr,
    "LOAD_FAST_CHECK": numbered(Op.LOAD_FAST),
    "LOAD_FAST_AND_CLEAR": numbered(Op.LOAD_FAST_AND_CLEAR),
    "LOAD_LOCALS": plain(Op.LOAD_LOCALS),
    "LOAD_FROM_DICT_OR_DEREF": numbered(Op.LOAD_FROM_DICT_OR_DEREF),
    "LOAD_FROM_DICT_OR_GLOBALS": named(Op.LOAD_FROM_DICT_OR_GLOBALS),
    "COMPARE_OP": lambda low, raw: [(Op.COMPARE, dis.cmp_op[raw.arg >> 4])],
    "BINARY_SLICE": lambda low, raw: [(Op.BUILD_SLICE, 2), (Op.BINARY_SUBSCR, None)],
    "STORE_SLICE": lambda low, raw: [(Op.BUILD_SLICE, 2), (Op.STORE_SUBSCR, None)],
    "CALL_INTRINSIC_1": intrinsic_1,
    "CALL_INTRINSIC_2": intrinsic_2,
    "RETURN_CONST": lambda low, raw: [*load_const(low, raw), (Op.RETURN_VALUE, None)],
    "POP_JUMP_IF_TRUE": jump(Op.POP_JUMP_IF_TRUE),
    "POP_JUMP_IF_FALSE": jump(Op.POP_JUMP_IF_FALSE),
    "POP_JUMP_IF_NONE": jump(Op.POP_JUMP_IF_NONE),
    "POP_JUMP_IF_NOT_NONE": jump(Op.POP_JUMP_IF_NOT_NONE),
    "FOR_ITER": _for_iter,
    "END_FOR": lambda low, raw: [(Op.POP, None), (Op.POP, None)],
    "SEND": send,
    "END_SEND": lambda low, raw: [(Op.SWAP, 2), (Op.POP, None)],
    "CLEANUP_THROW": plain(Op.CLEANUP_THROW),
}
