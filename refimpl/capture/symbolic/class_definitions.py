"""Class statements: a class whose body does nothing but define names is made when the segment ends, if it is still there.

Counterpart: torch/_dynamo/symbolic_convert.py LOAD_BUILD_CLASS
Differs: a class that is defined and not used, or used after a graph break alone, costs no graph.
"""

from __future__ import annotations

import builtins
from types import CellType, CodeType
from typing import Any, NoReturn

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import NormalizedCode, Op
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.symbolic.builtin_calls import Rule
from refimpl.capture.values import ConstantValue, FunctionValue, ObjectValue, UnmadeClassValue, Value
from refimpl.capture.values.classes import in_mro, is_a
from refimpl.capture.values.function import BUILD_CLASS

_METACLASSES = (type, type(torch.autograd.Function))  # they run nothing of the user's
_DECORATORS = ("staticmethod", "classmethod", "property")
_READ = ("__name__", *_DECORATORS)
_ASKED_FOR = ("__slots__", "__qualname__", "__classcell__")  # by what makes the class
_CAN_BE_DERIVED_FROM = 1 << 10  # Py_TPFLAGS_BASETYPE


def _build_class(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    body, name, *bases = [domain.state.see(arg) for arg in args]
    if kwargs or len(bases) > 1 or not isinstance(body, FunctionValue) or not isinstance(name, ConstantValue):
        _break("keywords, or several bases")
    for base in bases:
        if not (_is_plain_base(base.object) if isinstance(base, ObjectValue) else _has_no_say(base)):
            _break("a base that has a say in it")
    try:
        plain = _only_defines(normalize(body.code))
    except UnsupportedCode as error:
        raise GraphBreak("unsupported_code", what=body.code.co_name, error=str(error)) from error
    if not plain:
        _break("a body that does more than to define names")
    for read in _DECORATORS:
        if read in body.code.co_names:
            found = domain.state.see(domain.load_global(frame, read))
            if not isinstance(found, ObjectValue) or found.object is not getattr(builtins, read):
                _break(f"another {read}")
    return UnmadeClassValue(body, name.value, bases)


def _break(which: str) -> NoReturn:
    raise GraphBreak("unsupported_operation", what=f"a definition with {which}", kind="class")


def _is_plain_base(base: Any) -> bool:
    return (
        is_a(base, type)
        and type(base) in _METACLASSES
        and bool(base.__flags__ & _CAN_BE_DERIVED_FROM)
        and in_mro(base, "__init_subclass__") is object.__dict__["__init_subclass__"]
    )


def _has_no_say(base: Value) -> bool:
    return isinstance(base, UnmadeClassValue) and "__init_subclass__" not in base.body.code.co_names


def _only_defines(code: NormalizedCode) -> bool:
    """Whether a class body reads nothing that may change and calls nothing but decorators of builtins, each with a function."""
    stack: list[Any] = []  # a name that is read, a constant, or the code of a function; a cell or a tuple as what it is
    for instruction in code.instructions:
        match instruction.op, instruction.arg:
            case Op.MAKE_CELL, _:
                pass
            case Op.LOAD_CONST, constant:
                stack.append(constant)
            case Op.LOAD_FAST, _:
                stack.append(CellType)
            case Op.LOAD_NAME, name if name in _READ:
                stack.append(_Named(name))
            case Op.COPY, 1:
                stack.append(stack[-1])
            case Op.BUILD_TUPLE, count:
                del stack[len(stack) - count :]
                stack.append(tuple)
            case (Op.BUILD_MAP | Op.BUILD_CONST_KEY_MAP) as op, count:
                del stack[len(stack) - (2 * count if op is Op.BUILD_MAP else count + 1) :]
                stack.append(dict)
            case Op.MAKE_FUNCTION, has_qualname:
                del stack[len(stack) - has_qualname :]
            case Op.SET_FUNCTION_ATTRIBUTE, _:
                del stack[-2]
            case Op.CALL, 1 if (
                type(stack[-2]) is _Named and stack[-2] in _DECORATORS and isinstance(stack[-1], CodeType)
            ):
                del stack[-2]
            case Op.STORE_NAME, name if _may_store(name, stack.pop()):
                pass
            case Op.RETURN_VALUE, _:
                return True
            case _:
                return False
    return False


class _Named(str):
    """A name that the body reads."""


def _may_store(name: str, held: Any) -> bool:
    if name in _READ or type(held) is _Named:
        return name == "__module__" and held == "__name__"
    return (
        name not in _ASKED_FOR
        or (name == "__qualname__" and type(held) is str)
        or (name == "__classcell__" and held is CellType)
    )


CLASS_RULES: dict[int, Rule] = {id(BUILD_CLASS): _build_class}
