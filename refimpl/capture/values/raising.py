"""How an operation of the program says that it raises."""

from __future__ import annotations

from typing import Any, NoReturn

from refimpl.capture.values.value import Value


class UserRaise(Exception):
    """The program raises an exception, inside of the segment. Seen by the machine alone.

    Either `error`, which is there, or one that is made of a class and the values of its arguments. `args_of_error` is None where
    they are not known; `constants` are objects, of which the values are still to be made.
    """

    def __init__(
        self, class_: type | None = None, values: list[Value] | None = None, *, constants: tuple[Any, ...] = (),
        error: Value | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.error, self.class_, self.values, self.constants = error, class_, values, constants


def raising(class_: type, *args: Any) -> NoReturn:
    """An operation of the program raises an exception with these constants. Without any: they are not known."""
    raise UserRaise(class_, constants=args)
