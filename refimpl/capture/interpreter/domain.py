"""What the loop asks of a kind of values. Concrete: values are Python's objects. Symbolic: they stand for what is not known yet.

Counterpart: torch/_dynamo/variables/base.py VariableTracker
Differs: the loop holds values without looking into them; one object per domain answers for all of them.

A method raises what the user's program is to see (see `user_exception`). Where a method would run a function of the user's, it
may return `Enter` to have that function's frame run by the loop, which puts the result where the method's would go (`Then`). An
operation of several steps is a function in Python that does them. Methods whose answer is no value of the program (`matches`,
`is_none`, `cell_value` and others) cannot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter, Signal


class Domain(ABC):
    """Answers for values."""

    # ------------------------------------------------------------------------------------------ constants and operators

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """The value of an object that stands in the code."""

    @abstractmethod
    def truth(self, value: Any) -> bool | Enter:
        """Whether a branch is taken: a plain bool, or a frame that gives a value whose truth is one."""

    @abstractmethod
    def is_none(self, value: Any) -> bool:
        """Whether the value is None: a plain bool."""

    @abstractmethod
    def unary(self, sign: str, value: Any) -> Any:
        """`-`, `+`, `~` or `not`."""

    @abstractmethod
    def binary(self, sign: str, left: Any, right: Any) -> Any:
        """`+` and its like, or `+=` and its like."""

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
        """`value.name`. May be `Enter`."""

    @abstractmethod
    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        """`value.name = attribute`."""

    @abstractmethod
    def delete_attr(self, value: Any, name: str) -> Enter | None:
        """`del value.name`."""

    @abstractmethod
    def load_super_attr(self, frame: FrameState, super_: Any, class_: Any, self_: Any, name: str, given: bool) -> Any:
        """`super(class_, self_).name`; not `given`: `super().name`."""

    @abstractmethod
    def get_item(self, container: Any, key: Any) -> Any:
        """`container[key]`. May be `Enter`."""

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
        """What displays and comprehensions do to a container of theirs: "append", "add", "put" (key, value), "extend",
        "update_set", "update_dict", or "merge" (mapping, function that gets it as keywords)."""

    @abstractmethod
    def const_keys(self, keys: Any) -> list[Any]:
        """The values in a tuple that stands in the code."""

    @abstractmethod
    def list_to_tuple(self, value: Any) -> Any:
        """A tuple of the elements of a list that was just built."""

    @abstractmethod
    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        """The elements, first to last; with `after`, a list of those between the first and the last ones among them.

        Or a frame that gives a sequence to unpack in the value's place.
        """

    @abstractmethod
    def convert(self, kind: str, value: Any) -> Any:
        """`str`, `repr` or `ascii` of it, by first letter."""

    @abstractmethod
    def format(self, value: Any, spec: Any) -> Any:
        """What an f-string makes of it. `spec` is None where there is none."""

    # ---------------------------------------------------------------------------------------------- iteration, generators

    @abstractmethod
    def get_iter(self, value: Any) -> Any:
        """`iter(value)`. May be `Enter`."""

    @abstractmethod
    def next(self, iterator: Any) -> Any:
        """The next element, `Exhausted`, or `Enter`."""

    @abstractmethod
    def yield_from_iter(self, frame: FrameState, value: Any) -> Any:
        """The iterator that `yield from value` takes from."""

    @abstractmethod
    def send(self, receiver: Any, value: Any) -> Any:
        """What the receiver yields when `value` is sent; `Exhausted` with what it returns; or `Enter`."""

    # ------------------------------------------------------------------------------------------------ variables and names

    @abstractmethod
    def make_cell(self, value: Any) -> Any:
        """A new cell; `UNBOUND` for an empty one."""

    @abstractmethod
    def cell_value(self, cell: Any) -> Any:
        """What is in the cell, or `UNBOUND`."""

    @abstractmethod
    def set_cell(self, cell: Any, value: Any) -> None:
        """Fill the cell; `UNBOUND` empties it."""

    @abstractmethod
    def load_global(self, frame: FrameState, name: str) -> Any:
        """From globals, then builtins; `UNBOUND` where there is none."""

    @abstractmethod
    def store_global(self, frame: FrameState, name: str, value: Any) -> None:
        """Assign; `UNBOUND` deletes. Raises KeyError where there is nothing to delete."""

    @abstractmethod
    def load_from(self, mapping: Any, name: str) -> Any:
        """From a mapping of names, `UNBOUND` where there is none."""

    @abstractmethod
    def store_name(self, frame: FrameState, name: str, value: Any) -> None:
        """In `frame.names`; `UNBOUND` deletes. Raises KeyError where there is nothing to delete."""

    @abstractmethod
    def local_names(self, frame: FrameState) -> Any:
        """The mapping that a class body fills."""

    @abstractmethod
    def unbound(self, kind: str, name: str) -> NoReturn:
        """Raises what the user is to see for a variable without value: "local", "free" or "name"."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------- calls and definitions

    @abstractmethod
    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)`. May be `Enter`."""

    @abstractmethod
    def keyword_names(self, names: Any) -> tuple[str, ...]:
        """The names in a tuple that stands in the code."""

    @abstractmethod
    def call_ex(self, frame: FrameState, function: Any, args: Any, kwargs: Any) -> Any:
        """The same with values for the containers; `kwargs` is None where there are none. May be `Enter`."""

    @abstractmethod
    def make_function(self, frame: FrameState, code: Any, qualname: Any) -> Any:
        """A function without defaults and closure; `qualname` is None from 3.11 on, where the code has it."""

    @abstractmethod
    def set_function_attribute(self, function: Any, which: str, value: Any) -> Any:
        """The function with "defaults", "kwdefaults", "annotations" or "closure"."""

    @abstractmethod
    def load_build_class(self, frame: FrameState) -> Any:
        """What makes classes."""

    @abstractmethod
    def import_name(self, frame: FrameState, name: str, names: Any, level: Any) -> Any:
        """A module."""

    @abstractmethod
    def import_from(self, module: Any, name: str) -> Any:
        """An attribute or submodule."""

    @abstractmethod
    def intrinsic(self, frame: FrameState, name: str, *operands: Any) -> Any:
        """What only modules, class bodies and declarations of types use."""

    # --------------------------------------------------------------------------------------------------------- exceptions

    @abstractmethod
    def user_exception(self, raised: BaseException) -> Any:
        """The value that the user's handlers see for what a method has raised. Raises what is none of the user's."""

    @abstractmethod
    def under(self, handled: Any, advance: Callable[[FrameState], Signal], frame: FrameState) -> Signal:
        """`advance(frame)`, where `handled` is the exception that is handled meanwhile; None: nobody handles one."""

    @abstractmethod
    def add_traceback(self, error: Any, frame: FrameState) -> None:
        """The exception has passed through the frame at its current line."""

    @abstractmethod
    def leave_generator(self, error: Any) -> Any:
        """What comes out of a generator that lets the exception out."""

    @abstractmethod
    def throw(self, error: Any) -> NoReturn:
        """Raises the exception in the frame that runs: what `generator.throw` does."""
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
        """The exception for `raise` where none is handled; the one that is handled around the loop, if any."""

    @abstractmethod
    def too_deep(self) -> NoReturn:
        """Raises what the user is to see when calls are nested too deep."""
        raise NotImplementedError

    @abstractmethod
    def matches(self, error: Any, kinds: Any) -> bool:
        """Whether `except kinds` takes the exception: a plain bool."""

    @abstractmethod
    def split_group(self, error: Any, kinds: Any) -> tuple[Any, Any]:
        """The rest and the part that `except* kinds` takes, None where there is none of it."""

    @abstractmethod
    def regroup(self, original: Any, errors: Any) -> Any:
        """What is raised after `except*` blocks, or None."""

    @abstractmethod
    def stop_value(self, error: Any) -> tuple[bool, Any]:
        """Whether the exception is a StopIteration, and its value."""

    @abstractmethod
    def enter_context(self, frame: FrameState, manager: Any) -> tuple[Any, Any]:
        """The bound `__exit__`, and what `__enter__` gives (which may be `Enter`)."""

    @abstractmethod
    def exit_context(self, frame: FrameState, exit_: Any, error: Any) -> Any:
        """What `__exit__` says of an exception. May be `Enter`."""

    # ----------------------------------------------------------------------------------------------------------- patterns

    @abstractmethod
    def is_pattern(self, kind: str, value: Any) -> bool:
        """Whether it is a "mapping" or "sequence" for `match`: a plain bool."""

    @abstractmethod
    def match_keys(self, mapping: Any, keys: Any) -> Any:
        """A tuple of values, or the value None."""

    @abstractmethod
    def match_class(self, subject: Any, kind: Any, positional: int, names: Any) -> Any:
        """A tuple of attributes, or the value None."""

    @abstractmethod
    def length(self, value: Any) -> Any:
        """`len(value)`."""

    @abstractmethod
    def without_keys(self, mapping: Any, keys: Any) -> Any:
        """A dict of the rest."""
