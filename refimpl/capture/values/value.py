"""The base class of values: what the interpreter asks of every value in a frame during capture.

Counterpart: torch/_dynamo/variables/base.py VariableTracker
Differs: a value with a source stands for an object of the program; after the graph it is read again from its source.

Each kind of value implements its own operations: `TensorValue.truth` breaks the graph, `SequenceValue.truth` is whether there
are items. An operation that a kind does not implement breaks the graph, and CPython runs the instruction. `domain` is the
`SymbolicDomain`, through which a value asks other values, inlines functions and adds guards. A method that has to run a
function of the program returns `Enter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import COMPARE, UNARY
from refimpl.capture.values.classes import ends_with_code

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

TEXTS = {"s": str, "r": repr, "a": ascii}


class Value:
    """A value of any kind. `source`: how the program's object is read; None for an object made in the segment."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    @property
    def kind(self) -> str:
        """The name of the kind in messages."""
        return type(self).__name__.removesuffix("Value").lower()

    @property
    def changed_source(self) -> Source | None:
        """The source of the program's object that a change of its content changes."""
        return self.source

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def is_object(self) -> bool:
        """Whether it is an instance of a class that may have methods written in Python."""
        return False

    @property
    def is_like_set(self) -> bool:
        """Whether it is a set, a frozenset or a view of keys or items."""
        return False

    @property
    def is_iterator(self) -> bool:
        """Whether `next()` is supported."""
        return False

    def class_of(self) -> type:
        """`type(value)`."""
        unsupported("type()", self)

    def class_of_operand(self) -> type:
        """The class whose operator methods may be called; `object` for a value without any."""
        return object

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        """The constant object, also for a tuple or list of constants. Breaks the graph for other values; `what` names what
        needs a constant.
        """
        unsupported(what, self)

    def plain_of_member(self) -> Value:
        """The number or string of a member of an `IntEnum` or `StrEnum`; other values unchanged."""
        return self

    def hash_key(self, domain: SymbolicDomain) -> Any:
        """The key under which a dict or set stores it. Raises the program's TypeError for unhashable objects."""
        unsupported("a key", self)

    def truth(self, domain: SymbolicDomain) -> Any:
        """`bool(value)`: a bool, or `Enter` with a frame that returns it."""
        return True

    def text(self, domain: SymbolicDomain, kind: str) -> Any:
        """`str`, `repr` or `ascii` of it, by the first letter."""
        return domain.folded(TEXTS[kind], [self], {})

    def format(self, domain: SymbolicDomain, spec: Any) -> Any:
        """`format(value, spec)`; spec is None where there is none."""
        return domain.folded(format, [self] if spec is None else [self, spec], {})

    # -------------------------------------------------------------------------------------------------- operators

    operand_rank: ClassVar[int] = 0
    """By kind: 1 containers, 3 symbolic numbers, 4 tensors, 6 numpy arrays, 0 all others."""

    @property
    def rank(self) -> int:
        """The operand of the higher rank answers for both; of two equal ranks the left one."""
        if self.is_object:
            return 5
        return 2 if self.is_like_set else self.operand_rank

    def unary(self, domain: SymbolicDomain, sign: str) -> Any:
        """`-value`, `+value` or `~value`."""
        return domain.folded(UNARY[sign], [self], {})

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        """`left + right` or `left += right`, and the other operators. The value is one of the operands."""
        unsupported(f"`{sign}`", right if left.is_constant else left)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        """`left == right`, and the other comparisons. The value is one of the operands."""
        return domain.folded(COMPARE[sign], [left, right], {})

    @property
    def is_operand_of_tensors(self) -> bool:
        """Whether it may be an operand of a torch operator beside a tensor."""
        return True

    @property
    def is_constant(self) -> bool:
        """Whether equal objects are interchangeable."""
        return False

    @property
    def equality_is_identity(self) -> bool:
        """Whether `==` with a value of another kind compares identity."""
        return False

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        """`value.name`."""
        unsupported(f"attribute {name}", self)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        """`hasattr`, with a guard if the result is False; None if that needs code of the user's."""
        unsupported("hasattr()", self)

    def guard_attribute(self, domain: SymbolicDomain, name: str) -> None:
        """Adds a guard that the object has this attribute, if the program may delete it."""

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        """`value.name = attribute`."""
        unsupported(f"an assignment to attribute {name}", self)

    def delete_attr(self, domain: SymbolicDomain, name: str) -> Any:
        """`del value.name`."""
        unsupported(f"deleting attribute {name}", self)

    def special(self, domain: SymbolicDomain, name: str) -> Any:
        """A special method written in Python, looked up on the class and bound; None if the class has none, or one in C."""
        return None

    def call_special(self, domain: SymbolicDomain, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class."""
        unsupported(name, self)

    # ------------------------------------------------------------------------------------------------------ calls

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`value(...)`."""
        unsupported("a call", self)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """`value.name(...)`, for a method written in C."""
        unsupported(f"method {name}", self)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        """`with value`: the bound `__exit__`, and the result of `__enter__`."""
        enter, exit_ = self.special(domain, "__enter__"), self.special(domain, "__exit__")
        if enter is None or exit_ is None:
            unsupported("with", self)
        return exit_, domain.enter_function(enter.function, [self], {})

    # ------------------------------------------------------------------------------------------------- what is in it

    def length(self, domain: SymbolicDomain) -> Any:
        """`len(value)`."""
        unsupported("the length", self)

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        """`item in value`, or `not in`."""
        unsupported("`in`", self)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        """`value[key]`."""
        unsupported("an item", self)

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> Any:
        """`value[key] = item`."""
        unsupported("an assignment to an item", self)

    def delete_item(self, domain: SymbolicDomain, key: Value) -> Any:
        """`del value[key]`."""
        unsupported("deleting an item", self)

    def runs_code(self, domain: SymbolicDomain) -> bool:
        """Whether iterating over it may run code of the user's, or resume a generator."""
        return False

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        """The items that iterating gives. Only for values whose iteration runs no code of the user's."""
        unsupported("iterating", self)

    def iterate(self, domain: SymbolicDomain) -> Any:
        """`iter(value)`."""
        unsupported("iterating", self)

    def next(self, domain: SymbolicDomain) -> Any:
        """`next(value)`: an item, `Exhausted`, or `Enter` with a frame that returns one."""
        unsupported("next()", self)

    def check_iterated(self, iterator: Any) -> None:
        """Raises the program's RuntimeError if a dict, set or deque changed size during iteration. Called before each step."""

    def iterated(self, iterator: Any, index: int) -> Value:
        """The item at this index of an iterator over it."""
        return iterator.items[index]

    def pairs(self, domain: SymbolicDomain) -> list[tuple[Value, Value]]:
        """The pairs that `dict(value)` would hold."""
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
        """An expression that iterates over nothing, with an iterator of the same class."""
        return "()"

    def attribute_written(self, emitter: Any, attribute: str, new: str) -> str:
        """A line that assigns an attribute of the program's object as the segment did."""
        return f"setattr({emitter.expression(self)}, {attribute!r}, {new})"

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        """An iterator over it that has taken as many steps as `iterator`."""
        name = emitter.named(iterator, f"iter({emitter.expression(self)})")
        if iterator.position:
            emitter.line(f"{name}.__setstate__({iterator.position})")
        return name

    # ------------------------------------------------------------------------------------------ arguments of operators

    def as_fake(self, state: Any, what: str) -> Any:
        """The argument for a call of an operator on fakes. what: the operator."""
        raise GraphBreak("not_a_graph_argument", what=self.kind)

    def as_argument(self, state: Any) -> Any:
        """The argument for the node."""
        raise GraphBreak("not_a_graph_argument", what=self.kind)


class LazyValue(Value):
    """An object that the program has not used yet, and which therefore has no guards. `CaptureState.realize` gives its real
    value.

    Counterpart: torch/_dynamo/variables/lazy.py LazyVariableTracker
    """

    __slots__ = ("object",)
    source: Source

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(source)
        self.object = object_

    def rebuilt(self, emitter: Any) -> str:
        return emitter.kept(self.source)


class DeletedValue(Value):
    """Stands in the list of written attributes for one that the segment has deleted. The program never sees it."""

    __slots__ = ()


DELETED = DeletedValue()


def advanced_by_steps(emitter: Any, over: Value, iterator: Any) -> str:
    """An iterator whose position cannot be set: it takes its steps again."""
    name = emitter.named(iterator, f"iter({emitter.expression(over)})")
    if iterator.position:
        emitter.line(f"for _ in range({iterator.position}): next({name})")
    return name


def unsupported(what: str, value: Value) -> NoReturn:
    """Breaks the graph: this operation is not supported for the value."""
    raise GraphBreak("unsupported_operation", what=what, kind=value.kind)


def end_of(class_: type) -> GraphBreak:
    """The reason to stop before the program drops an object whose end runs code."""
    return GraphBreak("unsupported_operation", what="the end of an object with __del__", kind=class_.__name__)


def before_the_end(object_: Any) -> None:
    """Breaks the graph before an attribute or variable of the program loses this object, if its end runs code."""
    if ends_with_code(object_):
        raise end_of(type(object_))


class UserRaise(Exception):
    """The program raises an exception within the segment. Only the machine catches it.

    It carries either an existing exception, `error`, or a class with arguments: `values`, which is None where they are not
    known, or `constants`, objects whose values are still to be made.
    """

    def __init__(
        self, class_: type | None = None, values: list[Value] | None = None, *, constants: tuple[Any, ...] = (),
        error: Value | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.error, self.class_, self.values, self.constants = error, class_, values, constants


def raising(class_: type, *args: Any) -> NoReturn:
    """Raises an exception of the program with these constants as arguments. Without any, the arguments are not known."""
    raise UserRaise(class_, constants=args)
