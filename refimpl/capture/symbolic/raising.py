"""How an operation of the program says that it raises, and how one says that it is not known."""

from __future__ import annotations

from typing import Any, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.values import ConstantValue, ErrorValue, Value


class UserRaise(Exception):
    """The program raises an exception, inside of the segment. Seen by the machine alone."""

    def __init__(self, error: ErrorValue) -> None:
        super().__init__()
        self.error = error


def raising(class_: type, *args: Any) -> NoReturn:
    """An operation of the program raises an exception with these constants. Without any: they are not known."""
    raise UserRaise(ErrorValue(class_, [ConstantValue(arg) for arg in args] if args else None))


def unsupported(what: str, value: Value) -> NoReturn:
    raise GraphBreak("unsupported_operation", what=what, kind=value.kind)
