"""Binds the arguments of a call into the slots of a frame, by calling a generated function with the same parameters.

Counterpart: torch/csrc/dynamo/eval_frame.c; the frame that CPython makes there before a guard is checked
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.interpreter.frame import UNBOUND

_UNBOUND, _DEFAULTS = "_refimpl_unbound", "_refimpl_defaults"
Binder = Callable[..., list[Any]]


class Entry:
    """Binds the arguments of calls of one function. Defaults and closure cells are read at each call."""

    __slots__ = ("_binder", "_code", "_defaults", "function")

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self._code: Any = None
        self._defaults: Any = None
        self._binder: Binder | None = None

    def slots(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The slots of a frame that has not begun; None for a function or call that this way of binding does not cover."""
        function = self.function
        if function.__code__ is not self._code or function.__defaults__ is not self._defaults:
            self._code, self._defaults = function.__code__, function.__defaults__
            self._binder = _binder(function)
        if self._binder is None:
            return None
        try:
            slots = self._binder(*args, **kwargs)
        except TypeError:
            return None  # calling the function itself raises CPython's own message
        return [*slots, *function.__closure__] if function.__closure__ else slots


def _binder(function: FunctionType) -> Binder | None:
    """None for functions that are bound another way: generators, keyword-only defaults (which may change in place), odd names."""
    code = function.__code__
    try:
        normalized = normalize(code)
    except UnsupportedCode:
        return None
    if function.__kwdefaults__ or not all(name.isidentifier() for name in normalized.slots) or normalized.is_generator:
        return None
    count = code.co_argcount
    names = list(normalized.slots[: count + code.co_kwonlyargcount])
    rest = list(normalized.slots[len(names) :])
    defaults = function.__defaults__ or ()
    parameters = list(names[:count])
    for index in range(len(defaults)):
        parameters[count - len(defaults) + index] += f"={_DEFAULTS}[{index}]"
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    values = list(names)
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append("*" + rest[0])
        values.append(rest.pop(0))
    elif code.co_kwonlyargcount:
        parameters.append("*")
    parameters += names[count:]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append("**" + rest[0])
        values.append(rest.pop(0))
    unbound = normalized.first_free - len(values)
    source = f"def bind({', '.join(parameters)}):\n    return [{', '.join([*values, *[_UNBOUND] * unbound])}]\n"
    namespace: dict[str, Any] = {_UNBOUND: UNBOUND, _DEFAULTS: defaults}
    exec(compile(source, "<parameters of a function>", "exec"), namespace)
    return namespace["bind"]
