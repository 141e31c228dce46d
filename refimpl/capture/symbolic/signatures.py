"""`inspect.signature` of functions and methods written in Python.

Counterpart: torch/_dynamo/variables/functions.py, polyfills of inspect
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.symbolic.builtin_calls import Rule
from refimpl.capture.values import MethodValue, ObjectValue
from refimpl.capture.values.classes import is_a

_ELSEWHERE = ("__wrapped__", "__signature__", "__text_signature__")  # where a function may say another one


def _signature(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = domain.state.see(args[0]) if len(args) == 1 and not kwargs else None
    function = given.function if isinstance(given, MethodValue) else given
    function = domain.state.see(function)
    if not isinstance(function, ObjectValue) or not is_a(function.object, FunctionType):
        raise GraphBreak("call_of_native_code", what="inspect.signature")
    plain = function.object
    if any(name in plain.__dict__ for name in _ELSEWHERE) or function.source is None:
        raise GraphBreak("call_of_native_code", what="inspect.signature")
    for name in _ELSEWHERE:
        domain.state.guard(GuardKind.WITHOUT, function.source, name)
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
        domain.state.guard(GuardKind.ID, AttributeSource(function.source, name), getattr(plain, name))
    found = inspect.signature(plain)
    if given is not function:
        parameters = list(found.parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise GraphBreak("call_of_native_code", what="inspect.signature")
        found = found.replace(parameters=parameters[1:])
    return domain.state.wrap(found, KeptSource(found, f"signature of {plain.__qualname__}"))


SIGNATURE_RULES: dict[int, Rule] = {id(inspect.signature): _signature}
