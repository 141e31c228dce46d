"""Real objects for functions that nobody captures, because a node's operator calls them: policies of checkpoints, leaf functions.

Counterpart: torch/_dynamo/variables/higher_order_ops.py, where as_python_constant of a function is used
"""

from __future__ import annotations

import functools
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.interpreter.frame import UNBOUND
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    MethodValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.function import CellValue, FunctionValue, LocalFunctionValue

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


def real_object(domain: SymbolicDomain, value: Any) -> Any:
    """The object itself; a function that the segment defines is made from its code, with what it closes over now.

    Guards hold objects that are there before. Raises GraphBreak for a value that is known as a node only.
    """
    known: Value = domain.state.realize(value)
    match known:
        case ConstantValue():
            return known.value
        case ObjectValue() | LocalFunctionValue():
            if known.source is not None:
                domain.state.guard(GuardKind.ID, known.source, known.object)
            return known.object
        case PartialValue():
            named = {name: real_object(domain, item) for name, item in known.keywords.items()}
            return functools.partial(
                real_object(domain, known.function), *(real_object(domain, item) for item in known.args), **named
            )
        case MethodValue():
            return real_object(domain, known.function).__get__(real_object(domain, known.receiver))
        case FunctionValue():
            return _function(domain, known)
        case SequenceValue() if known.class_ in (tuple, list):
            return known.class_(real_object(domain, item) for item in known.items)
        case DictValue() if known.class_ is dict:
            return {real_object(domain, key): real_object(domain, item) for key, item in known.items.values()}
        case _:
            kind = "tensor that a function which is not captured closes over" if _is_tensor(known) else known.kind
            raise GraphBreak("not_a_graph_argument", what=kind)


def _is_tensor(value: Value) -> bool:
    return isinstance(value, TensorValue)


def _function(domain: SymbolicDomain, value: FunctionValue) -> FunctionType:
    cells = () if value.closure is None else tuple(_cell(domain, cell) for cell in domain.elements(value.closure))
    defaults = None if value.defaults is None else real_object(domain, value.defaults)
    made = FunctionType(value.code, value.globals, value.code.co_name, defaults, cells)
    if value.keyword_defaults is not None:
        made.__kwdefaults__ = real_object(domain, value.keyword_defaults)
    made.__dict__.update({name: real_object(domain, item) for name, item in value.attributes.items()})
    return made


def _cell(domain: SymbolicDomain, value: Any) -> CellType:
    known = domain.state.realize(value)
    if not isinstance(known, CellValue):
        raise GraphBreak("not_a_graph_argument", what=known.kind)
    if known.content is UNBOUND:
        return CellType()
    return CellType(real_object(domain, known.content))
