"""Translation rules for instructions that mean the same in CPython 3.10 to 3.13."""

from __future__ import annotations

from refimpl.capture.bytecode.decode import RawInstruction
from refimpl.capture.bytecode.drafts import Label, Lowering, Rule, SlotOp, Steps
from refimpl.capture.bytecode.instructions import Op

FUNCTION_ATTRIBUTES = {1: "defaults", 2: "kwdefaults", 4: "annotations", 8: "closure"}
_CONVERSIONS = ("", "s", "r", "a")


def nothing(low: Lowering, raw: RawInstruction) -> Steps:
    """No step: only CPython's own evaluation loop needs the instruction."""
    return []


def plain(op: Op) -> Rule:
    """A step without argument."""
    return lambda low, raw: [(op, None)]


def constant_argument(op: Op, arg: object) -> Rule:
    """A step whose argument follows from the opcode."""
    return lambda low, raw: [(op, arg)]


def numbered(op: Op | SlotOp) -> Rule:
    """A step with the same argument."""
    return lambda low, raw: [(op, raw.arg)]


def named(op: Op) -> Rule:
    """A step whose argument is a name."""
    return lambda low, raw: [(op, low.code.co_names[raw.arg])]


def flagged(op: Op) -> Rule:
    """A step whose argument is a bool."""
    return lambda low, raw: [(op, bool(raw.arg))]


def jump(op: Op) -> Rule:
    """A step whose argument is a jump target."""
    return lambda low, raw: [(op, label(raw))]


def refused(reason: str) -> Rule:
    """Refuses the code object, for this reason."""
    return lambda low, raw: low.refuse(reason, raw.line)


def label(raw: RawInstruction) -> Label:
    """The label of the instruction's jump target."""
    assert raw.target is not None, raw
    return Label(raw.target)


def load_const(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.LOAD_CONST, low.code.co_consts[raw.arg])]


def unpack_ex(low: Lowering, raw: RawInstruction) -> Steps:
    return [(Op.UNPACK_EX, (raw.arg & 0xFF, raw.arg >> 8))]


def format_value(low: Lowering, raw: RawInstruction) -> Steps:
    """3.10 to 3.12: conversion and format in one instruction."""
    conversion, has_spec = _CONVERSIONS[raw.arg & 3], bool(raw.arg & 4)
    if not conversion:
        return [(Op.FORMAT, has_spec)]
    if has_spec:
        return [(Op.SWAP, 2), (Op.CONVERT, conversion), (Op.SWAP, 2), (Op.FORMAT, True)]
    return [(Op.CONVERT, conversion), (Op.FORMAT, False)]


def make_function(*, has_qualname: bool) -> Rule:
    """3.10 to 3.12: the function's attributes lie below the code on the stack, in the order of their flags."""

    def lower(low: Lowering, raw: RawInstruction) -> Steps:
        attributes = [(Op.SET_FUNCTION_ATTRIBUTE, FUNCTION_ATTRIBUTES[flag]) for flag in (8, 4, 2, 1) if raw.arg & flag]
        return [(Op.MAKE_FUNCTION, has_qualname), *attributes]

    return lower


def call_function_ex(slots_of_callable: int) -> Rule:
    """The callable, since 3.11 with a NULL beside it, then the arguments and perhaps keyword arguments."""
    return lambda low, raw: [(SlotOp.CALL_EX, (slots_of_callable + 1 + (raw.arg & 1), bool(raw.arg & 1)))]


def jump_or_pop(op: Op) -> Rule:
    """3.10 and 3.11: the value stays on the stack if the jump is taken."""
    return lambda low, raw: [(Op.COPY, 1), (op, label(raw)), (Op.POP, None)]


_ASYNC = refused("async functions are not interpreted")

COMMON: dict[str, Rule] = {
    "NOP": nothing,
    "POP_TOP": plain(Op.POP),
    "LOAD_CONST": load_const,
    "LOAD_FAST": numbered(Op.LOAD_FAST),
    "STORE_FAST": numbered(Op.STORE_FAST),
    "DELETE_FAST": numbered(Op.DELETE_FAST),
    "STORE_GLOBAL": named(Op.STORE_GLOBAL),
    "DELETE_GLOBAL": named(Op.DELETE_GLOBAL),
    "LOAD_NAME": named(Op.LOAD_NAME),
    "STORE_NAME": named(Op.STORE_NAME),
    "DELETE_NAME": named(Op.DELETE_NAME),
    "STORE_ATTR": named(Op.STORE_ATTR),
    "DELETE_ATTR": named(Op.DELETE_ATTR),
    "BINARY_SUBSCR": plain(Op.BINARY_SUBSCR),
    "STORE_SUBSCR": plain(Op.STORE_SUBSCR),
    "DELETE_SUBSCR": plain(Op.DELETE_SUBSCR),
    "UNARY_NEGATIVE": constant_argument(Op.UNARY, "-"),
    "UNARY_NOT": constant_argument(Op.UNARY, "not"),
    "UNARY_INVERT": constant_argument(Op.UNARY, "~"),
    "IS_OP": flagged(Op.IS),
    "CONTAINS_OP": flagged(Op.CONTAINS),
    "BUILD_TUPLE": numbered(Op.BUILD_TUPLE),
    "BUILD_LIST": numbered(Op.BUILD_LIST),
    "BUILD_SET": numbered(Op.BUILD_SET),
    "BUILD_MAP": numbered(Op.BUILD_MAP),
    "BUILD_CONST_KEY_MAP": numbered(Op.BUILD_CONST_KEY_MAP),
    "BUILD_SLICE": numbered(Op.BUILD_SLICE),
    "BUILD_STRING": numbered(Op.BUILD_STRING),
    "LIST_APPEND": numbered(Op.LIST_APPEND),
    "SET_ADD": numbered(Op.SET_ADD),
    "MAP_ADD": numbered(Op.MAP_ADD),
    "LIST_EXTEND": numbered(Op.LIST_EXTEND),
    "SET_UPDATE": numbered(Op.SET_UPDATE),
    "DICT_UPDATE": numbered(Op.DICT_UPDATE),
    "DICT_MERGE": numbered(Op.DICT_MERGE),
    "UNPACK_SEQUENCE": numbered(Op.UNPACK_SEQUENCE),
    "UNPACK_EX": unpack_ex,
    "FORMAT_VALUE": format_value,
    "JUMP_FORWARD": jump(Op.JUMP),
    "GET_ITER": plain(Op.GET_ITER),
    "RETURN_VALUE": plain(Op.RETURN_VALUE),
    "GET_YIELD_FROM_ITER": plain(Op.GET_YIELD_FROM_ITER),
    "LOAD_BUILD_CLASS": plain(Op.LOAD_BUILD_CLASS),
    "LOAD_ASSERTION_ERROR": constant_argument(Op.LOAD_CONST, AssertionError),
    "IMPORT_NAME": named(Op.IMPORT_NAME),
    "IMPORT_FROM": named(Op.IMPORT_FROM),
    "RAISE_VARARGS": numbered(Op.RAISE),
    "RERAISE": plain(Op.RERAISE),
    "MATCH_MAPPING": plain(Op.MATCH_MAPPING),
    "MATCH_SEQUENCE": plain(Op.MATCH_SEQUENCE),
    "GET_LEN": plain(Op.GET_LEN),
    "SETUP_ANNOTATIONS": constant_argument(Op.STATEMENT, "annotations"),
    "BEFORE_ASYNC_WITH": _ASYNC,
    "END_ASYNC_FOR": _ASYNC,
    "GET_AITER": _ASYNC,
    "GET_ANEXT": _ASYNC,
    "GET_AWAITABLE": _ASYNC,
    "SETUP_ASYNC_WITH": _ASYNC,
    "ASYNC_GEN_WRAP": _ASYNC,
}
