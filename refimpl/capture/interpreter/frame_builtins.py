"""Builtins that read the calling frame: `super()`, `locals()`, `eval()` and others."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import CellType
from typing import Any

from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.interpreter.tracebacks import caller

_Call = Callable[[FrameState, list[Any], dict[str, Any]], Any]


def special_call(frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """What to run instead of the call; None if the function can be called directly."""
    rule = _RULES.get(id(function))
    return None if rule is None else rule(frame, args, kwargs)


def locals_of(frame: FrameState) -> Any:
    """The result of `locals()`."""
    if frame.names is not None:
        return frame.names
    found: dict[str, Any] = {}
    for name, value in zip(frame.code.slots, frame.slots, strict=True):
        if type(value) is CellType:
            try:
                value = value.cell_contents
            except ValueError:
                continue
        if value is not UNBOUND:
            found[name] = value
    return found


def _super(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    if args or kwargs:
        return None
    class_, self_ = super_arguments(frame)
    return lambda: super(class_, self_)


def super_arguments(frame: FrameState) -> tuple[Any, Any]:
    """The implicit arguments of `super()`. Raises its RuntimeError."""
    code = frame.code
    if not code.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    self_ = frame.slots[0]
    if 0 in code.cells and type(self_) is CellType:
        self_ = _contents(self_)
    if self_ is UNBOUND:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in code.slots:
        raise RuntimeError("super(): __class__ cell not found")
    class_ = _contents(frame.slots[code.slots.index("__class__")])
    if class_ is UNBOUND:
        raise RuntimeError("super(): empty __class__ cell")
    return class_, self_


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


def _locals(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    return None if args or kwargs else lambda: locals_of(frame)


def _globals(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    return None if args or kwargs else lambda: frame.globals


def _dir(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    return None if args or kwargs else lambda: sorted(locals_of(frame))


def _evaluate(function: Callable[..., Any]) -> _Call:
    def rule(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        given = args[1] if len(args) > 1 else kwargs.get("globals")
        if not args or given is not None:
            return None
        names = args[2] if len(args) > 2 else kwargs.get("locals")
        others = {key: value for key, value in kwargs.items() if key not in ("globals", "locals")}
        given_names = locals_of(frame) if names is None else names
        return lambda: caller(frame)(function, (args[0], frame.globals, given_names), others)

    return rule


def _exc_info(frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """`sys.exc_info`, with the exception's own traceback: Python 3.10 keeps another, which has an entry of the interpreter."""
    error = sys.exc_info()[1]
    return None if args or kwargs or error is None else lambda: (type(error), error, error.__traceback__)


_RULES: dict[int, _Call] = {
    id(sys.exc_info): _exc_info,
    id(super): _super,
    id(builtins.locals): _locals,
    id(builtins.vars): _locals,
    id(builtins.globals): _globals,
    id(builtins.dir): _dir,
    id(builtins.eval): _evaluate(eval),
    id(builtins.exec): _evaluate(exec),
}
