"""What a frame holds while a segment is captured, and what the interpreter asks of every value.

Counterpart: torch/_dynamo/variables/base.py VariableTracker
Differs: a value with a source was there before the segment: it is read again from there, and may not be changed in place.

A kind of value answers for itself: `TensorValue.truth` is a graph break, `SequenceValue.truth` is whether there are items. What a
kind does not answer is a graph break too, and CPython runs the instruction. `domain` is the `SymbolicDomain`: by it a value asks
other values, enters functions and notes guards. A method that has to run a function of the program returns `Enter`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import COMPARE, UNARY

TEXTS = {"s": str, "r": repr, "a": ascii}


class Value:
    """Anything. `source`: how the object is read when the segment is entered; None for what the segment makes."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    @property
    def kind(self) -> str:
        """What breaks call it."""
        return type(self).__name__.removesuffix("Value").lower()

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def is_object(self) -> bool:
        """Whether it is an instance of a class whose methods may be written in Python."""
        return False

    @property
    def is_like_set(self) -> bool:
        """Whether it is a set, a frozenset or a view of keys."""
        return False

    @property
    def is_iterator(self) -> bool:
        """Whether `next()` of it is known."""
        return False

    def class_of(self) -> type:
        """`type(value)`."""
        unsupported("type()", self)

    def class_of_operand(self) -> type:
        """The class whose methods an operator on it and an object asks; `object` where it has none to ask."""
        return object

    def constant(self, domain: Any, what: str) -> Any:
        """The object that it is, also of a tuple or list of constants. `what`: what needs a constant."""
        unsupported(what, self)

    def plain_of_member(self) -> Value:
        """The number or string that a member of an `IntEnum` or its like is; other values as they are."""
        return self

    def hash_key(self, domain: Any) -> Any:
        """What a dict or set finds it by. Raises TypeError of the program for what has no hash."""
        unsupported("a key", self)

    def truth(self, domain: Any) -> Any:
        """`bool(value)`: a plain bool, or a frame that gives it."""
        return True

    def text(self, domain: Any, kind: str) -> Any:
        """`str`, `repr` or `ascii` of it, by first letter."""
        return domain.folded(TEXTS[kind], [self], {})

    def format(self, domain: Any, spec: Any) -> Any:
        """`format(value, spec)`; spec is None where there is none."""
        return domain.folded(format, [self] if spec is None else [self, spec], {})

    # -------------------------------------------------------------------------------------------------- operators

    operand_rank: ClassVar[int] = 0
    """Of the kind: 1 containers, 3 numbers that depend on sizes, 4 tensors, 6 arrays of numpy, 0 all others."""

    @property
    def rank(self) -> int:
        """The operand of the higher rank answers for both; of two equal ranks the left one."""
        if self.is_object:
            return 5
        return 2 if self.is_like_set else self.operand_rank

    def unary(self, domain: Any, sign: str) -> Any:
        """`-value`, `+value` or `~value`."""
        return domain.folded(UNARY[sign], [self], {})

    def binary(self, domain: Any, sign: str, left: Value, right: Value) -> Any:
        """`left + right` or `left += right`, and their like. The value is one of the two."""
        unsupported(f"`{sign}`", right if left.is_constant else left)

    def compare(self, domain: Any, sign: str, left: Value, right: Value) -> Any:
        """`left == right` and its like. The value is one of the two."""
        return domain.folded(COMPARE[sign], [left, right], {})

    @property
    def is_operand_of_tensors(self) -> bool:
        """Whether an operator of torch may be asked what it makes of a tensor and it."""
        return True

    @property
    def is_constant(self) -> bool:
        """Whether equal objects are as good."""
        return False

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: Any, name: str) -> Any:
        """`value.name`."""
        unsupported(f"attribute {name}", self)

    def has_attribute(self, domain: Any, name: str) -> bool | None:
        """`hasattr`, guarded where there is none; None where code of the user's has to be run for it."""
        unsupported("hasattr()", self)

    def store_attr(self, domain: Any, name: str, attribute: Any) -> Any:
        """`value.name = attribute`."""
        unsupported(f"an assignment to attribute {name}", self)

    def delete_attr(self, domain: Any, name: str) -> Any:
        """`del value.name`."""
        unsupported(f"deleting attribute {name}", self)

    def special(self, domain: Any, name: str) -> Any:
        """A special method written in Python, looked up on the class and bound; None if the class has another one or none."""
        return None

    def call_special(self, domain: Any, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class."""
        unsupported(name, self)

    # ------------------------------------------------------------------------------------------------------ calls

    def call(self, domain: Any, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`value(...)`."""
        unsupported("a call", self)

    def call_method(self, domain: Any, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`value.name(...)` of a method that is written in C."""
        unsupported(f"method {name}", self)

    def enter_context(self, domain: Any) -> tuple[Any, Any]:
        """`with value`: its `__exit__`, and what its `__enter__` gives."""
        enter, exit_ = self.special(domain, "__enter__"), self.special(domain, "__exit__")
        if enter is None or exit_ is None:
            unsupported("with", self)
        return exit_, domain.enter_function(enter.function, [self], {})

    # ------------------------------------------------------------------------------------------------- what is in it

    def length(self, domain: Any) -> Any:
        """`len(value)`."""
        unsupported("the length", self)

    def contains(self, domain: Any, item: Value, inverted: bool) -> Any:
        """`item in value`, or `not in`."""
        unsupported("`in`", self)

    def get_item(self, domain: Any, key: Value) -> Any:
        """`value[key]`."""
        unsupported("an item", self)

    def set_item(self, domain: Any, key: Value, item: Any) -> Any:
        """`value[key] = item`."""
        unsupported("an assignment to an item", self)

    def delete_item(self, domain: Any, key: Value) -> Any:
        """`del value[key]`."""
        unsupported("deleting an item", self)

    def runs_code(self, domain: Any) -> bool:
        """Whether going through it may run code of the user's, or that of an iterator here."""
        return False

    def elements(self, domain: Any) -> list[Value]:
        """All that iterating gives, where that runs no code of the user's."""
        unsupported("iterating", self)

    def iterate(self, domain: Any) -> Any:
        """`iter(value)`."""
        unsupported("iterating", self)

    def next(self, domain: Any) -> Any:
        """`next(value)`: an element, `Exhausted`, or a frame that gives one."""
        unsupported("next()", self)

    def check_iterated(self, iterator: Any) -> None:
        """What C notices of changes of what an iterator goes through, before its next step."""

    def iterated(self, iterator: Any, index: int) -> Value:
        """The element that an iterator over it gives."""
        return iterator.items[index]

    def pairs(self, domain: Any) -> list[tuple[Value, Value]]:
        """What `dict` makes of it: the pairs of a mapping, or those that it consists of."""
        pairs = [domain.elements(pair) for pair in self.elements(domain)]
        if any(len(pair) != 2 for pair in pairs):
            raise GraphBreak("op_raises_on_fake", what="dict", error="ValueError")
        return [(first, second) for first, second in pairs]

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        """An expression that makes the object, or its name after lines that make it. emitter: see `rebuild`."""
        raise GraphBreak("cannot_rebuild", kind=self.kind)

    @property
    def exhausted(self) -> str:
        """What has the same class of iterator, and gives nothing."""
        return "()"

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        """An iterator over it that has taken as many steps."""
        name = emitter.named(iterator, f"iter({emitter.expression(self)})")
        if iterator.position:
            emitter.line(f"{name}.__setstate__({iterator.position})")
        return name

    # ------------------------------------------------------------------------------------------ arguments of operators

    def as_fake(self, state: Any, what: str) -> Any:
        """The argument of a call of torch on fakes. what: the operator."""
        raise GraphBreak("not_a_graph_argument", what=self.kind)

    def as_argument(self, state: Any) -> Any:
        """The same, for the node."""
        raise GraphBreak("not_a_graph_argument", what=self.kind)


class LazyValue(Value):
    """An object that the program has not used yet, so no guard holds it to anything. `CaptureState.realize` looks at it.

    Counterpart: torch/_dynamo/variables/lazy.py LazyVariableTracker
    """

    __slots__ = ("object",)
    source: Source

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(source)
        self.object = object_

    def rebuilt(self, emitter: Any) -> str:
        return emitter.kept(self.source)


def advanced_by_steps(emitter: Any, over: Value, iterator: Any) -> str:
    """An iterator over a value that cannot be told where it is: it takes its steps again."""
    name = emitter.named(iterator, f"iter({emitter.expression(over)})")
    if iterator.position:
        emitter.line(f"for _ in range({iterator.position}): next({name})")
    return name


def unsupported(what: str, value: Value) -> NoReturn:
    """Breaks the graph: this is not known of such a value."""
    raise GraphBreak("unsupported_operation", what=what, kind=value.kind)


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
