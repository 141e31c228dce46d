"""Functions of `operator` that are an instruction as a function: they do what the instruction does.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable._fx_graph_functions, call_setitem
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.values import ConstantValue, polyfills

Rule = Callable[[Any, FrameState, list[Any], dict[str, Any]], Any]
OPERATOR_RULES: dict[int, Rule] = {}  # by id, as the other rules


def _note(function: Any, count: int, answer: Callable[..., Any]) -> None:
    def rule(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or kwargs:
            raise GraphBreak("op_raises_on_fake", what=function.__name__, error="TypeError")
        return answer(domain, *args)

    OPERATOR_RULES[id(function)] = rule


def _without_value(entered: Any, what: str) -> Any:
    """None, where nothing had to be entered: a function that is would give its own value."""
    if entered is not None:
        raise GraphBreak("call_of_native_code", what=what)
    return ConstantValue(None)


def _truth(domain: Any, value: Any) -> Any:
    found = domain.truth(value)
    return ConstantValue(found) if type(found) is bool else domain.enter_polyfill(polyfills.truth_of, [value])


for _sign, _function in BINARY.items():
    _note(_function, 2, lambda domain, left, right, sign=_sign: domain.binary(sign, left, right))
for _sign, _function in COMPARE.items():
    _note(_function, 2, lambda domain, left, right, sign=_sign: domain.compare(sign, left, right))
for _sign, _function in UNARY.items():
    _note(_function, 1, lambda domain, value, sign=_sign: domain.unary(sign, value))
_note(operator.truth, 1, _truth)
_note(operator.is_, 2, lambda domain, left, right: domain.identical(left, right, False))
_note(operator.is_not, 2, lambda domain, left, right: domain.identical(left, right, True))
_note(operator.contains, 2, lambda domain, container, item: domain.contains(item, container, False))
_note(operator.getitem, 2, lambda domain, container, key: domain.get_item(container, key))
_note(
    operator.setitem, 3,
    lambda domain, container, key, item: _without_value(domain.set_item(container, key, item), "setitem"),
)  # fmt: skip
_note(
    operator.delitem, 2, lambda domain, container, key: _without_value(domain.delete_item(container, key), "delitem")
)  # fmt: skip
