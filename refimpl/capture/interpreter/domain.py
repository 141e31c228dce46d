"""The domain: the operations on values that the interpreter's loop calls.

In the concrete domain values are Python objects. In the symbolic one they stand for objects of a later run.

Counterpart: torch/_dynamo/variables/base.py VariableTracker
Differs: the loop never looks into a value; one domain object answers for all of them.

A method raises the exceptions of the user's program (see `user_exception`). A method that would call a function of the user's
may return `Enter`: the loop then runs that function's frame and puts its result where the method's would go (`Then`). An
operation of several steps is a polyfill in Python. Methods whose result is no value of the program (`matches`, `is_none`,
`cell_value` and others) cannot return `Enter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter, Signal


class Domain(ABC):
    """The operations on values."""

    # ------------------------------------------------------------------------------------------ constants and operators

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """The value of a constant of the code."""

    @abstractmethod
    def truth(self, value: Any) -> bool | Enter:
        """Whether a branch is taken: a bool, or `Enter` with a frame whose result has that truth."""

    def asserts(self, value: Any, message: str) -> bool:
        """Whether an `assert` of the value became an assertion of the graph: the program then goes on as if it held."""
        return False

    @abstractmethod
    def is_none(self, value: Any) -> bool:
        """Whether the value is None, as a bool."""

    @abstractmethod
    def unary(self, sign: str, value: Any) -> Any:
        """`-`, `+`, `~` or `not`."""

    @abstractmethod
    def binary(self, sign: str, left: Any, right: Any) -> Any:
        """`+` and the other operators, or `+=` and the other in-place operators."""

    @abstractmethod
    def compare(self, sign: str, left: Any, right: Any) -> Any:
        """`<`, `<=`, `==`, `!=`, `>` or `>=`."""

    @abstractmethod
    def identical(self, left: Any, right: Any, inverted: bool) -> Any:
        """`is` or `is not`."""

    @abstractmethod
    def contains(self, item: Any, container: Any, inverted: bool) -> Any:
        """`in` or `not in`."""

    # ------------------------------------------------------------------------------------------------ attributes, items

    @abstractmethod
    def load_attr(self, value: Any, name: str) -> Any:
        """`value.name`. May return `Enter`."""

    @abstractmethod
    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        """`value.name = attribute`."""

    @abstractmethod
    def delete_attr(self, value: Any, name: str) -> Enter | None:
        """`del value.name`."""

    @abstractmethod
    def load_super_attr(self, frame: FrameState, super_: Any, class_: Any, self_: Any, name: str, given: bool) -> Any:
        """`super(class_, self_).name`; with `given` False, `super().name`."""

    @abstractmethod
    def get_item(self, container: Any, key: Any) -> Any:
        """`container[key]`. May return `Enter`."""

    @abstractmethod
    def set_item(self, container: Any, key: Any, item: Any) -> Enter | None:
        """`container[key] = item`."""

    @abstractmethod
    def delete_item(self, container: Any, key: Any) -> Enter | None:
        """`del container[key]`."""

    # ----------------------------------------------------------------------------------------------- containers, strings

    @abstractmethod
    def build(self, kind: str, items: list[Any]) -> Any:
        """A "tuple", "list", "set", "slice" or "string" of the items; a "dict" of keys and values in turn."""

    @abstractmethod
    def grow(self, how: str, container: Any, *items: Any) -> Enter | None:
        """How displays and comprehensions fill their container: "append", "add", "put" (key, value), "extend", "update_set",
        "update_dict", or "merge" (mapping, function that is called with the keywords).
        """

    @abstractmethod
    def const_keys(self, keys: Any) -> list[Any]:
        """The values in a constant tuple of the code."""

    @abstractmethod
    def list_to_tuple(self, value: Any) -> Any:
        """A tuple of the elements of a list that was just built."""

    @abstractmethod
    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        """The items, first to last; with `after`, a list of those between the first and the last ones among them.

        Or `Enter` with a frame that returns a sequence to unpack instead.
        """

    @abstractmethod
    def convert(self, kind: str, value: Any) -> Any:
        """`str`, `repr` or `ascii` of it, by first letter."""

    @abstractmethod
    def format(self, value: Any, spec: Any) -> Any:
        """The result of an f-string's format. `spec` is None where there is none."""

    # ---------------------------------------------------------------------------------------------- iteration, generators

    @abstractmethod
    def get_iter(self, value: Any) -> Any:
        """`iter(value)`. May return `Enter`."""

    @abstractmethod
    def next(self, iterator: Any) -> Any:
        """The next item, `Exhausted`, or `Enter`."""

    @abstractmethod
    def yield_from_iter(self, frame: FrameState, value: Any) -> Any:
        """The iterator for `yield from value`."""

    @abstractmethod
    def send(self, receiver: Any, value: Any) -> Any:
        """The value that the receiver yields when `value` is sent; `Exhausted` with its result; or `Enter`."""

    # ------------------------------------------------------------------------------------------------ variables and names

    @abstractmethod
    def make_cell(self, value: Any) -> Any:
        """A new cell; `UNBOUND` for an empty one."""

    @abstractmethod
    def cell_value(self, cell: Any) -> Any:
        """The content of the cell, or `UNBOUND`."""

    @abstractmethod
    def set_cell(self, cell: Any, value: Any) -> None:
        """Fills the cell; `UNBOUND` empties it."""

    @abstractmethod
    def load_global(self, frame: FrameState, name: str) -> Any:
        """The variable in globals, else in builtins, else `UNBOUND`."""

    @abstractmethod
    def store_global(self, frame: FrameState, name: str, value: Any) -> None:
        """Assigns; `UNBOUND` deletes. Raises KeyError if there is nothing to delete."""

    @abstractmethod
    def load_from(self, mapping: Any, name: str) -> Any:
        """The name in a mapping of names, or `UNBOUND`."""

    @abstractmethod
    def store_name(self, frame: FrameState, name: str, value: Any) -> None:
        """Assigns in `frame.names`; `UNBOUND` deletes. Raises KeyError if there is nothing to delete."""

    @abstractmethod
    def local_names(self, frame: FrameState) -> Any:
        """The mapping that a class body fills."""

    @abstractmethod
    def names(self, frame: FrameState, slot: int, value: Any) -> None:
        """Called when a variable gets a value."""

    @abstractmethod
    def drops(self, frame: FrameState, slot: int) -> None:
        """Called before a variable loses its value, by `del` or an assignment."""

    @abstractmethod
    def unbound(self, kind: str, name: str) -> NoReturn:
        """Raises the user's error for an unbound variable: "local", "free" or "name"."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------- calls and definitions

    @abstractmethod
    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)`. May return `Enter`."""

    @abstractmethod
    def keyword_names(self, names: Any) -> tuple[str, ...]:
        """The names in a constant tuple of the code."""

    @abstractmethod
    def call_ex(self, frame: FrameState, function: Any, args: Any, kwargs: Any) -> Any:
        """`call` with values for the containers; `kwargs` is None if there are none. May return `Enter`."""

    @abstractmethod
    def make_function(self, frame: FrameState, code: Any, qualname: Any) -> Any:
        """A function without defaults and closure. `qualname` is None from 3.11 on, where the code has it."""

    @abstractmethod
    def set_function_attribute(self, function: Any, which: str, value: Any) -> Any:
        """The function with "defaults", "kwdefaults", "annotations" or "closure"."""

    @abstractmethod
    def load_build_class(self, frame: FrameState) -> Any:
        """`__build_class__`."""

    @abstractmethod
    def import_name(self, frame: FrameState, name: str, names: Any, level: Any) -> Any:
        """A module."""

    @abstractmethod
    def import_from(self, module: Any, name: str) -> Any:
        """An attribute or submodule."""

    @abstractmethod
    def intrinsic(self, frame: FrameState, name: str, *operands: Any) -> Any:
        """An operation of modules, class bodies and type declarations only."""

    # --------------------------------------------------------------------------------------------------------- exceptions

    @abstractmethod
    def user_exception(self, raised: BaseException) -> Any:
        """The value that the user's handlers see for an exception that a method raised. Raises exceptions that are not the
        user's.
        """

    @abstractmethod
    def under(self, handled: Any, advance: Callable[[FrameState], Signal], frame: FrameState) -> Signal:
        """`advance(frame)` while `handled` is the exception being handled; None if there is none."""

    @abstractmethod
    def add_traceback(self, error: Any, frame: FrameState) -> None:
        """The exception leaves the frame at its current line."""

    @abstractmethod
    def leave_generator(self, error: Any) -> Any:
        """The exception that leaves a generator: RuntimeError in place of StopIteration."""

    @abstractmethod
    def throw(self, error: Any, *, is_handling: bool) -> NoReturn:
        """Raises the exception in the running frame, as `generator.throw` does."""
        raise NotImplementedError

    @abstractmethod
    def leave(self, error: Any) -> NoReturn:
        """Raises the exception out of the loop."""
        raise NotImplementedError

    @abstractmethod
    def raise_(self, exception: Any, cause: Any, has_cause: bool) -> None:
        """`raise exception from cause`."""

    @abstractmethod
    def nothing_to_reraise(self) -> Any:
        """The exception for `raise` without one to reraise; or the exception that is being handled outside the loop."""

    @abstractmethod
    def too_deep(self) -> NoReturn:
        """Raises the user's error for calls that are nested too deep."""
        raise NotImplementedError

    @abstractmethod
    def matches(self, error: Any, kinds: Any) -> bool:
        """Whether `except kinds` catches the exception, as a bool."""

    @abstractmethod
    def split_group(self, error: Any, kinds: Any) -> tuple[Any, Any]:
        """The rest, and the part that `except* kinds` catches; None for an empty one."""

    @abstractmethod
    def regroup(self, original: Any, errors: Any) -> Any:
        """The exception after `except*` blocks, or None."""

    @abstractmethod
    def stop_value(self, error: Any) -> tuple[bool, Any]:
        """Whether the exception is a StopIteration, and its value."""

    @abstractmethod
    def enter_context(self, frame: FrameState, manager: Any) -> tuple[Any, Any]:
        """The bound `__exit__`, and the result of `__enter__` (which may be `Enter`)."""

    @abstractmethod
    def exit_context(self, frame: FrameState, exit_: Any, error: Any) -> Any:
        """The result of `__exit__` for an exception. May return `Enter`."""

    # ----------------------------------------------------------------------------------------------------------- patterns

    @abstractmethod
    def is_pattern(self, kind: str, value: Any) -> bool:
        """Whether it is a "mapping" or a "sequence" for `match`, as a bool."""

    @abstractmethod
    def match_keys(self, mapping: Any, keys: Any) -> Any:
        """A tuple of items, or the value None."""

    @abstractmethod
    def match_class(self, subject: Any, kind: Any, positional: int, names: Any) -> Any:
        """A tuple of attributes, or the value None."""

    @abstractmethod
    def length(self, value: Any) -> Any:
        """`len(value)`."""

    @abstractmethod
    def without_keys(self, mapping: Any, keys: Any) -> Any:
        """A dict of the remaining items."""
